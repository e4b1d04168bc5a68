"""The formulas of the papers: arrays in, arrays out, one file a formula."""
