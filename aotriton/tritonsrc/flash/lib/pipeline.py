"""The pipeline of a warp-specialised kernel: mbarriers, the slots of its stages, and named barriers of warp groups.

Steps are counted from 0 over all that a program does. Step i has the slot i % STAGES, and each use of a slot is a phase
of its barriers: `full`, at which what is loaded arrives, and `empty`, at which those who have read it do.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def barrier():
    """Shared memory for a barrier."""
    return gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())


@gluon.jit
def barriers(COUNT: gl.constexpr):
    """Shared memory for so many barriers."""
    return gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())


@gluon.jit
def init_all(some, COUNT: gl.constexpr):
    """Makes barriers that so many arrivals complete a phase of."""
    NUMBER: gl.constexpr = some.shape[0]
    for i in gl.static_range(NUMBER):
        mbarrier.init(some.index(i), count=COUNT)


@gluon.constexpr_function
def is_power_of_two(number):
    return number & (number - 1) == 0


@gluon.constexpr_function
def log2_of(power):
    return power.bit_length() - 1


@gluon.jit
def slot_of(step, STAGES: gl.constexpr):
    """`step` is not negative, which the compiler does not know."""
    if is_power_of_two(STAGES):
        return step & (STAGES - 1)
    else:
        return step % STAGES


@gluon.jit
def phase_of(step, STAGES: gl.constexpr):
    """Of `full`, when the step has been loaded, and of `empty`, when all consumers have given it back."""
    if is_power_of_two(STAGES):
        return step >> log2_of(STAGES) & 1
    else:
        return step // STAGES & 1


@gluon.jit
def await_step(full, step, STAGES: gl.constexpr, pred=True):
    """Wait until a step has been loaded."""
    mbarrier.wait(full.index(slot_of(step, STAGES)), phase_of(step, STAGES), pred=pred)


@gluon.jit
def release(empty, step, STAGES: gl.constexpr):
    """This consumer needs no more of what the step brought."""
    mbarrier.arrive(empty.index(slot_of(step, STAGES)))


@gluon.jit
def skip(full, empty, step, STAGES: gl.constexpr):
    """Release a step without a look at it. But wait for it: or there may be two arrivals in a phase."""
    await_step(full, step, STAGES)
    release(empty, step, STAGES)


@gluon.jit
def acquire(empty, step, STAGES: gl.constexpr):
    """The slot of a step that is to be loaded, once all consumers have released what it had."""
    slot = slot_of(step, STAGES)
    mbarrier.wait(empty.index(slot), phase_of(step, STAGES) ^ 1)
    return slot


@gluon.jit
def join_consumers(x):
    """Both consumers wait for each other at named barrier 9; Triton counts its own from 0. Returns x."""
    line: gl.constexpr = "bar.sync 9, 256; mov.b32 $0, $1;"
    return gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def turn_of(what, c):
    """What "sync" or "arrive" is at the named barrier of consumer `c`'s turn: for it and for the one before, who hands
    it over. Triton counts its own barriers from 0.
    """
    return f"bar.{what} {9 + c}, 256; mov.b32 $0, $1;"


@gluon.jit
def take_turn(x, C: gl.constexpr, TURNS: gl.constexpr):
    """Wait until it is the turn of consumer C. Returns x."""
    if TURNS:
        line: gl.constexpr = turn_of("sync", C)
        x = gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)
    return x


@gluon.jit
def hand_turn(x, C: gl.constexpr, CONSUMERS: gl.constexpr, TURNS: gl.constexpr):
    """It is the turn of the consumer behind C. Returns x."""
    if TURNS:
        line: gl.constexpr = turn_of("arrive", (C + 1) % CONSUMERS)
        x = gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)
    return x


@gluon.jit
def await_stores(x):
    """Wait until all that this warp began to store or to add has arrived in memory. Returns x."""
    line: gl.constexpr = "cp.async.bulk.wait_group 0; bar.warp.sync 0xffffffff; mov.b32 $0, $1;"
    return gl.inline_asm_elementwise(line, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)
