"""What a person uses: the terminal console and its command-line twin."""
