"""What every run shares, whatever stack runs the model: subject, generations, checks, manifest and card."""
