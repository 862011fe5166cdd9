from typing import Any

from torch import Tensor

def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, sinks: Tensor | None = None,
              **options: Any) -> Tensor: ...
def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
                                 enable_gqa: bool = False, device: Any = None) -> Tensor: ...
