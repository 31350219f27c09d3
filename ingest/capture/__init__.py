"""What a capture consists of: its files, its manifest and its workload card."""
