"""Reads compiled programs: the HLO of one module, as the compiler writes it, in text or as a proto."""
