# Our benchmark for DeepEP.
