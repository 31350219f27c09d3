"""Facts of HLO instructions, found once per instruction, from HLO text or an embedded HLO proto."""
