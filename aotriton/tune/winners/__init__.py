"""Decisions from outcomes: which candidates race, which one wins a bin, which bins are finished."""
