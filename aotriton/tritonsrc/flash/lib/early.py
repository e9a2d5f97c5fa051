"""Early: kernels of a backend that begin while the one before still runs, as `launch_next` and `await_results` of
partial.py, for Gluon. Each takes a number and returns it, so that it keeps its place in the code.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def launch_next(x):
    """Lets the next kernel of the backend begin, which waits before it reads what this one writes. Returns x."""
    line: gl.constexpr = "griddepcontrol.launch_dependents; mov.b32 $0, $1;"
    return gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def await_results(x):
    """Waits for what the kernel before this one writes. Returns x."""
    line: gl.constexpr = "griddepcontrol.wait; mov.b32 $0, $1;"
    return gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)
