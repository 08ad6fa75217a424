"""Exact constrained MDPs: the paper's theory on tables, where every number can be computed and checked."""
