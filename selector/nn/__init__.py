"""Drop-in modules for torch.nn layers that select an implementation for the shapes of their inputs.

    from selector.nn import LSTM

    lstm = LSTM(512, 512, num_layers=2)   # torch.nn.LSTM's arguments, parameters and state dict

Each has the signature and the state dict of the class in torch.nn that it is named after, and inherits from
it; what they add is in `Selected`.
"""

from .activations import GELU, ReLU, SiLU
from .additive_attention import AdditiveAttention
from .attention import MultiheadAttention, ScaledDotProductAttention
from .linear import Linear, LinearCrossEntropy
from .norms import LayerNorm, RMSNorm
from .recurrent import GRU, LSTM, RNN
from .selected import Selected
from .transformer import TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AdditiveAttention",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropy",
    "MultiheadAttention",
    "RMSNorm",
    "ReLU",
    "ScaledDotProductAttention",
    "Selected",
    "SiLU",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
]
