"""Everything comes and goes at random, for as long as one likes, while every byte of the traffic is checked.

`schedule` says what happens when, from a seed and nothing else; `world` does it; `clients` are the traffic, `backend`
answers it; `chronicle` keeps what really happened; `verdict` holds what the clients saw against it; `audit` looks at
the node when all is quiet; `run` is the whole. ``python -m tests.system.soak``, or ``make soak``.
"""
