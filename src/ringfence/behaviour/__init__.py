"""The policies that wrote the paper's logs: PPO (unsafe) and CPO (safe), and the mixtures made from them."""
