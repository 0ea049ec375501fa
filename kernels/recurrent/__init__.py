"""Shared parts of the recurrent operators (lstm, gru, rnn): cells, modules, time loops and kernels.

No operator itself: it has no reference. Dimensions: T seq, B batch, I input, H hidden, L layers,
D directions (2 when bidirectional), G gates of the cell (4 lstm, 3 gru, 1 rnn), P projection or H.
"""
