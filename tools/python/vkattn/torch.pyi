from typing import Any, Literal, overload

from torch import Tensor

@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, sinks: Tensor | None = None,
              return_lse: Literal[False] = False, **options: Any) -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, sinks: Tensor | None = None,
              return_lse: bool, **options: Any) -> tuple[Tensor, Tensor]: ...
def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
                                 enable_gqa: bool = False, device: Any = None) -> Tensor: ...
def empty_cache() -> None: ...
