"""What an agent imports: tools, agents, the write-ahead protocol, workers and replay."""
