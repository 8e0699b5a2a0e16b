"""Other people's traffic, played again: traces read, prompts made of their blocks, calls made when they were due."""
