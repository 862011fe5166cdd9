"""Exact attention, forward and backward, on every GPU that Vulkan reaches.

>>> import numpy as np, vkattn
>>> q, k, v = (np.random.default_rng(n).standard_normal((1, 8, 128, 64), np.float32) for n in range(3))
>>> out, lse = vkattn.attention(q, k, v, causal=True)
>>> out.shape, lse.shape
((1, 8, 128, 64), (1, 8, 128))
"""

from ._arrays import Array, array, empty
from ._attention import Plan, attention, attention_backward, block_map, combine, plan
from ._device import Device, devices
from ._library import DeviceError, DeviceLost, InternalError, library
from ._tool import bench, conformance

__all__ = ["Array", "Device", "DeviceError", "DeviceLost", "InternalError", "Plan", "array", "attention",
           "attention_backward", "bench", "block_map", "combine", "conformance", "devices", "empty", "plan",
           "version"]


def version():
    """The version of the library, as "0.1.0".

    >>> import vkattn
    >>> vkattn.version().count(".")
    2
    """
    return library().vkattn_version().decode()
