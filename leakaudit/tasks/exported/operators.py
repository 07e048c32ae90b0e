"""The operators of a torch.export program that are run, and the values of their arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks.exported.archive import DTYPES

# Only operators on these lists are run: they compute new tensors from tensors, and neither read
# files nor address memory without a check. All others are rejected by name.

PREFIX = "torch.ops.aten."
LAYERS = (
    "linear addmm mm bmm matmul baddbmm einsum mv dot "
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d "
    "batch_norm layer_norm native_layer_norm group_norm native_group_norm instance_norm rms_norm "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training native_batch_norm "
    "embedding scaled_dot_product_attention dropout native_dropout feature_dropout alpha_dropout "
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool2d_with_indices "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
    "adaptive_max_pool1d adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d "
    "lstm gru rnn_tanh rnn_relu"
)
ACTIVATIONS = (
    "relu relu6 leaky_relu prelu elu selu celu gelu silu mish softplus hardtanh hardswish "
    "hardsigmoid sigmoid tanh log_sigmoid softmax _softmax log_softmax _log_softmax threshold "
    "softshrink hardshrink glu"
)
ELEMENTWISE = (
    "add sub rsub mul div reciprocal neg abs sign exp expm1 log log1p log2 log10 sqrt rsqrt square "
    "pow sin cos tan asin acos atan atan2 sinh cosh erf erfc floor ceil round trunc frac fmod "
    "remainder clamp clamp_min clamp_max minimum maximum where masked_fill lerp addcmul addcdiv "
    "eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or "
    "bitwise_not isnan isinf isfinite floor_divide nan_to_num __and__ __or__"
)
REDUCTIONS = (
    "sum mean var std var_mean std_mean amax amin max min prod argmax argmin norm "
    "linalg_vector_norm logsumexp cumsum cumprod diff any all topk sort"
)
SHAPES = (
    "view reshape _unsafe_view view_as flatten unflatten permute transpose t numpy_T movedim "
    "swapaxes squeeze unsqueeze expand expand_as repeat cat concat stack split split_with_sizes "
    "chunk unbind select slice narrow index index_select gather take_along_dim roll flip pad "
    "constant_pad_nd reflection_pad2d replication_pad2d pixel_shuffle tril triu diagonal unfold "
    "contiguous clone alias detach detach_ lift_fresh_copy to _to_copy type_as float double half "
    "bfloat16 scalar_tensor full full_like zeros zeros_like ones ones_like new_zeros new_ones "
    "new_full arange sym_size"
)
NAMES = frozenset(f"{LAYERS} {ACTIVATIONS} {ELEMENTWISE} {REDUCTIONS} {SHAPES}".split())
# Operators on lengths, which are plain integers here.
LENGTHS: dict[str, Callable[..., Any]] = {
    "_operator.add": operator.add,
    "_operator.sub": operator.sub,
    "_operator.mul": operator.mul,
    "_operator.floordiv": operator.floordiv,
    "_operator.mod": operator.mod,
    "_operator.neg": operator.neg,
    "_operator.eq": operator.eq,
    "_operator.ne": operator.ne,
    "_operator.lt": operator.lt,
    "_operator.le": operator.le,
    "_operator.gt": operator.gt,
    "_operator.ge": operator.ge,
}
# Operators that create tensors of a requested size, which is limited.
MAKES = ("full", "zeros", "ones", "new_zeros", "new_ones", "new_full", "arange", "repeat", "pad")
DROPOUTS = frozenset(["dropout", "native_dropout", "feature_dropout", "alpha_dropout"])
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
LARGEST = 2**28  # entries of a tensor that an operator creates: a GiB in float32, a choice


def base(target: str) -> str:
    """Return the name of an operator without overload and without the underscore of "in place"."""
    name = target.removeprefix(PREFIX).partition(".")[0]
    if name in NAMES or not name.endswith("_"):
        return name
    return name[:-1]


def in_place(target: str) -> bool:
    """Return whether an operator changes its first argument."""
    name = target.removeprefix(PREFIX).partition(".")[0]
    return name.endswith("_") and not name.startswith("__") and name != "detach_"


def function(target: str) -> Callable[..., Any]:
    """Return the function of an operator."""
    if target in LENGTHS:
        return LENGTHS[target]
    name, _, overload = target.removeprefix(PREFIX).partition(".")
    packet = None
    if target.startswith(PREFIX) and base(target) in NAMES:
        packet = getattr(torch.ops.aten, name, None)
    # Overloads that write into a given tensor, or read packed sequences, are not needed.
    writes = overload == "out" or overload.endswith("_out")
    wanted = not writes and overload != "data"
    if packet is None or not wanted or overload not in packet.overloads():
        raise LeakauditError(
            f"operator {target!r:.80} is not one of those that leakaudit runs; "
            "name the model as package.module:factory instead, with --trust-model"
        )
    # Kernels other than those of the export leave results in another order in memory.
    if target == f"{PREFIX}view.default":
        packet = torch.ops.aten.reshape
    found: Callable[..., Any] = getattr(packet, overload)
    return found


def value(argument: Mapping[str, Any], held: Mapping[str, Any], like: Tensor, own: Any) -> Any:
    """Return the value of an argument."""
    if len(argument) != 1:
        raise LeakauditError("an argument of the program has several values")
    ((kind, given),) = argument.items()
    if kind == "as_none":
        return None
    if kind in ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings"):
        return given
    if kind in ("as_float", "as_floats"):
        return [float(one) for one in given] if isinstance(given, list) else float(given)
    if kind in ("as_tensor", "as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
        return _held(given, held)
    if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_sym_floats"):
        return [_held(one, held) for one in given]
    if kind == "as_scalar_type" and given in DTYPES:
        dtype = DTYPES[given]
        return like.dtype if dtype == own and like.dtype in FLOATS else dtype
    if kind == "as_device":
        return like.device
    if kind == "as_memory_format" and given in FORMATS:
        return FORMATS[given]
    if kind == "as_layout":
        return torch.strided
    raise LeakauditError(f"the program has an argument of kind {kind!r:.40}, which is not read")


def _held(given: Mapping[str, Any], held: Mapping[str, Any]) -> Any:
    """Return what a name stands for; or a number in its place."""
    if "as_none" in given:
        return None
    for plain in ("as_int", "as_float", "as_bool"):
        if plain in given:
            return given[plain]
    name = given.get("name", given.get("as_name"))
    if "as_tensor" in given:
        name = given["as_tensor"]["name"]
    if name not in held:
        raise LeakauditError(f"the program uses {str(name)!r:.60} before it is computed")
    return held[name]


def refuse_large(name: str, arguments: Mapping[str, Any]) -> None:
    """Reject a request for more memory than any model needs."""
    if name not in MAKES:
        return
    sizes = arguments.get("size", arguments.get("repeats", arguments.get("end", 1)))
    numbers = sizes if isinstance(sizes, list | tuple) else [sizes]
    if math.prod(abs(n) for n in numbers if isinstance(n, int | float)) > LARGEST:
        raise LeakauditError(f"the program requests a tensor of {numbers} entries")
