"""The main job, where it can harm nothing: `python -m tests.tools.demo`.

Real hosts made of network namespaces, real backends, the real daemon with real netfilter. `story` tells what happens,
in order, and checks every sentence; `cast` holds what takes part.
"""
