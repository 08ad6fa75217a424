"""The paper's figures, our tables and the demonstration, each made by one command."""
