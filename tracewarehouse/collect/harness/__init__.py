"""The parts of a run that all stacks share: subject, generations, checks, manifest and card."""
