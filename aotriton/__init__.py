"""The Python side of aotriton: rules, kernels, tuner and code generator under one importable name."""
