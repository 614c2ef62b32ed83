"""Bytes from outside against every decoder that meets them.

`targets` says what is decoded and what must hold, without knowing what makes up the bytes: the replay of the corpus (in
every test run), hypothesis (`test_properties`), or the coverage-guided fuzzer (`make fuzz`). `corpus/TARGET` holds what
real servers and kernels said, and a few classic traps; `regressions/TARGET` what a fuzzer once found.
"""
