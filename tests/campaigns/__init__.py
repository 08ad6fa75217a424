"""Large campaigns of damage, run by hand: `python -m tests.campaigns.logs --cases 3000`, `... .runs --cases 300`."""
