"""GEMM for Hopper: in a persistent program a producer warp and one to three consumer warp groups turn A and B into D.

A tile of D is the product of rows of X and columns of Y, BLOCK_K of the sum at a time: that is a step, and what it
needs lies in one of STAGES slots. X is A and Y is B or, with SWAP, X is Bᵀ and Y is Aᵀ, so that the tile is transposed:
the tensor cores take no fewer than 64 rows of X, but as few as 8 columns of Y. The consumers share out the work thus:

    TURNS = 0   each has ROWS of the tile's CONSUMERS * ROWS rows: the largest tiles, and the shortest last step
    TURNS = 1   each has every second tile, of ROWS rows: one finishes its tile while the other multiplies

A consumer keeps one step's products in flight while it waits for the next, and a finished tile leaves from registers
to shared memory and from there, while the next is begun, to D.

Who waits for whom. Each arrow is an mbarrier, from who arrives, with the count or the bytes of a phase, to who waits:

    producer warp                                           consumer warp group c
    ─────────────                                           ─────────────────────
    loads step i of X and Y      ── full[slot], bytes ──▶   step i
    loads step i + STAGES        ◀─ empty[slot], each c ─   once step i + 1 is under way and step i is done

    consumer c, TURNS = 1                                   the other consumer
    ─────────────────────                                   ──────────────────
    began its tile's last step   ── turn[other], 1 ─────▶   before the first step of its next tile

With TURNS only the consumer whose tile it is arrives at empty[slot]. It must not look at full[slot] before its turn:
phases are told apart by one bit, and the other consumer may be many phases ahead. The first STAGES steps of a program
are under way before its warps part, each from when its slot has barriers: a small product is over sooner than the
producer warp would have begun.

SPLIT: tiles from whole_tiles on are split in `splits` parts along K, each a unit of work of its own, which ends in
Partial instead of D; gemm_reduce sums them. That evens out a last round of tiles, or spreads few tiles over the GPU.

Tensor memory accesses (TMA) read zeros beyond the end of a tensor. They write none there but for up to 14 bytes: a row
of D ends at a multiple of 16 bytes.

Tuned: ROWS (64 or 128), COLUMNS (16 to 256), BLOCK_K, CONSUMERS, TURNS, STAGES and SWAP.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from aotriton.tritonsrc.gemm.lib.bundle import bundle
from aotriton.tritonsrc.gemm.lib.tile import GROUP_M, activate, tile_at


@bundle
class Call:
    """What the warps of a program share: tensors, slots, barriers, numbers and constants."""

    D: gl.tensor
    Bias: gl.tensor
    Partial: gl.tensor
    X: gl.tensor
    Y: gl.tensor
    x_slots: gl.shared_memory_descriptor
    y_slots: gl.shared_memory_descriptor
    d_slots: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    turn: gl.shared_memory_descriptor
    rows: gl.tensor
    columns: gl.tensor
    alpha: gl.tensor
    activation: gl.tensor
    bias_stride_row: gl.tensor
    bias_stride_column: gl.tensor
    tiles_m: gl.tensor
    tiles_n: gl.tensor
    steps: gl.tensor
    units: gl.tensor
    whole_tiles: gl.tensor
    splits: gl.tensor
    BOXES: gl.constexpr
    STAGES: gl.constexpr
    TURNS: gl.constexpr
    SPLIT: gl.constexpr
    SWAP: gl.constexpr
    TRANS_X: gl.constexpr
    TRANS_Y: gl.constexpr


@gluon.jit
def steps_at(call, unit):
    """First step of a unit of work, and the one after its last."""
    first = 0
    last = call.steps
    if call.SPLIT and unit >= call.whole_tiles:
        split = (unit - call.whole_tiles) % call.splits
        first = split * call.steps // call.splits
        last = (split + 1) * call.steps // call.splits
    return first, last


@gluon.jit
def work_at(call, unit):
    """Row and column, in tiles, and batch of a unit of work."""
    tile = unit
    if call.SPLIT:
        tile = gl.minimum(unit, call.whole_tiles) + gl.maximum(unit - call.whole_tiles, 0) // call.splits
    return tile_at(tile, call.tiles_m, call.tiles_n, GROUP_M)


@gluon.jit
def load(X, x_slot, ready, batch, row, k, TRANS: gl.constexpr):
    """A box of X or Y to its place in a slot. TRANS: it is stored [batch, k, rows], otherwise [batch, rows, k]."""
    if TRANS:
        tma.async_copy_global_to_shared(X, [batch, k, row], ready, x_slot)
    else:
        tma.async_copy_global_to_shared(X, [batch, row, k], ready, x_slot)


@gluon.jit
def load_step(call, slot, batch, row, column, k):
    """The boxes that a step needs, each to its place in the slot."""
    BOXES: gl.constexpr = call.BOXES
    ROWS: gl.constexpr = call.X.block_shape[2 if call.TRANS_X else 1]
    ready = call.full.index(slot)
    mbarrier.expect(ready, BOXES * call.X.block_type.nbytes + call.Y.block_type.nbytes)
    for box in gl.static_range(BOXES):
        load(call.X, call.x_slots.index(slot * BOXES + box), ready, batch, row + box * ROWS, k, call.TRANS_X)
    load(call.Y, call.y_slots.index(slot), ready, batch, column, k, call.TRANS_Y)


@gluon.jit
def load_first_steps(call):
    """Makes the slots' barriers, and loads steps of the program's first unit of work. Returns how many."""
    BOXES: gl.constexpr = call.BOXES
    STAGES: gl.constexpr = call.STAGES
    ROWS: gl.constexpr = call.X.block_shape[2 if call.TRANS_X else 1]
    COLUMNS: gl.constexpr = call.Y.block_shape[2 if call.TRANS_Y else 1]
    BLOCK_K: gl.constexpr = call.X.block_shape[1 if call.TRANS_X else 2]
    m, n, batch = work_at(call, gl.program_id(0))
    first, last = steps_at(call, gl.program_id(0))
    row = (n if call.SWAP else m) * (BOXES * ROWS)
    column = (m if call.SWAP else n) * COLUMNS
    for slot in range(STAGES):
        mbarrier.init(call.full.index(slot), count=1)
        mbarrier.init(call.empty.index(slot), count=BOXES)
        k = first + slot
        if k < last:
            load_step(call, slot, batch, row, column, k * BLOCK_K)
    return gl.minimum(last - first, STAGES)


@gluon.jit
def producer(call, loaded):
    """Loads all steps but the first, which are `loaded` already."""
    BOXES: gl.constexpr = call.BOXES
    STAGES: gl.constexpr = call.STAGES
    ROWS: gl.constexpr = call.X.block_shape[2 if call.TRANS_X else 1]
    COLUMNS: gl.constexpr = call.Y.block_shape[2 if call.TRANS_Y else 1]
    BLOCK_K: gl.constexpr = call.X.block_shape[1 if call.TRANS_X else 2]
    step = loaded
    for unit in range(gl.program_id(0), call.units, gl.num_programs(0)):
        m, n, batch = work_at(call, unit)
        first, last = steps_at(call, unit)
        row = (n if call.SWAP else m) * (BOXES * ROWS)
        column = (m if call.SWAP else n) * COLUMNS
        if unit == gl.program_id(0):
            first += loaded
        for k in range(first * BLOCK_K, last * BLOCK_K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(call.empty.index(slot), ((step // STAGES) & 1) ^ 1)
            load_step(call, slot, batch, row, column, k)
            step += 1


@gluon.jit
def halves(x):
    """The left and the right columns of x."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()


@gluon.jit
def columns_apart(x, PIECE: gl.constexpr):
    """x as a tuple of pieces of PIECE columns."""
    if x.shape[1] == PIECE:
        return (x,)
    else:
        left, right = halves(x)
        return columns_apart(left, PIECE) + columns_apart(right, PIECE)


@gluon.jit
def add_bias(call, x, row, column):
    """x, whose first element is at [row, column], with the bias."""
    LAYOUT: gl.constexpr = x.type.layout
    if call.bias_stride_column != 0:
        at = column + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
        x += gl.expand_dims(gl.load(call.Bias + at, mask=at < call.columns, other=0.0).to(gl.float32), 0)
    if call.bias_stride_row != 0:
        at = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
        x += gl.expand_dims(gl.load(call.Bias + at, mask=at < call.rows, other=0.0).to(gl.float32), 1)
    return x


@gluon.jit
def piece_at(pieces, i):
    """pieces[i], where the kernel learns i only as it runs: by branches, which copy one piece, and not by selects."""
    if len(pieces) == 1:
        piece = pieces[0]
    elif i < len(pieces) // 2:
        piece = piece_at(pieces[: len(pieces) // 2], i)
    else:
        piece = piece_at(pieces[len(pieces) // 2 :], i - len(pieces) // 2)
    return piece


@gluon.jit
def stage(z, d_slot, AT: gl.constexpr, SWAP: gl.constexpr):
    """Puts z in the slot, from column AT of the result on."""
    if SWAP:
        d_slot.reshape([d_slot.shape[1], z.shape[0]]).slice(AT, z.shape[1], dim=0).permute((1, 0)).store(z)
    else:
        d_slot.reshape([z.shape[0], d_slot.shape[2]]).slice(AT, z.shape[1], dim=1).store(z)


@gluon.jit
def send(D, d_slot, batch, row, column, SWAP: gl.constexpr):
    """What was staged, from the slot to [row, column] of D."""
    fence_async_shared()
    if SWAP:
        tma.async_copy_shared_to_global(D, [batch, column, row], d_slot)
    else:
        tma.async_copy_shared_to_global(D, [batch, row, column], d_slot)


@gluon.jit
def write_plain(D, d_slot, acc, batch, row, column, alpha, SWAP: gl.constexpr):
    """Sends the sums `acc` of a consumer to D, begun from [row, column]."""
    D_COLUMNS: gl.constexpr = d_slot.shape[1 if SWAP else 2]
    pieces = columns_apart(acc, D_COLUMNS)
    for i in gl.static_range(len(pieces)):
        z = pieces[i] * alpha
        tma.store_wait(0)
        stage(z.to(D.dtype), d_slot, 0, SWAP)
        send(D, d_slot, batch, row, column + i * D_COLUMNS, SWAP)


@gluon.jit
def write_activated(call, d_slot, acc, batch, row, column):
    """The same with bias and activation.

    In a loop, and few columns at a time: an activation has no registers to spare, and written out for all columns it
    would be most of the image and take the compiler longer than all else.
    """
    SWAP: gl.constexpr = call.SWAP
    D_COLUMNS: gl.constexpr = d_slot.shape[1 if SWAP else 2]
    PIECE: gl.constexpr = min(D_COLUMNS, 32)
    PLACES: gl.constexpr = D_COLUMNS // PIECE
    pieces = columns_apart(acc, PIECE)
    for i in range(len(pieces)):
        z = piece_at(pieces, i) * call.alpha
        z = add_bias(call, z, row, column + i * PIECE)
        z = activate(z, call.activation).to(call.D.dtype)
        place = i % PLACES
        if place == 0:
            tma.store_wait(0)
        for at in gl.static_range(PLACES):
            if place == at:
                stage(z, d_slot, at * PIECE, SWAP)
        if place == PLACES - 1:
            send(call.D, d_slot, batch, row, column + (i + 1) * PIECE - D_COLUMNS, SWAP)


@gluon.jit
def consumer(call, C: gl.constexpr):
    """Consumer C of a program. The result has `rows` and `columns`: M and N, or with SWAP N and M."""
    x_slots, y_slots, full, empty, turn = call.x_slots, call.y_slots, call.full, call.empty, call.turn
    BOXES: gl.constexpr = call.BOXES
    STAGES: gl.constexpr = call.STAGES
    TURNS: gl.constexpr = call.TURNS
    SWAP: gl.constexpr = call.SWAP
    TRANS_X: gl.constexpr = call.TRANS_X
    TRANS_Y: gl.constexpr = call.TRANS_Y
    ROWS: gl.constexpr = x_slots.shape[3 if TRANS_X else 2]
    BLOCK_K: gl.constexpr = x_slots.shape[2 if TRANS_X else 3]
    COLUMNS: gl.constexpr = y_slots.shape[3 if TRANS_Y else 2]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    BOX: gl.constexpr = 0 if TURNS else C
    d_slot = call.d_slots.index(C)
    programs = gl.num_programs(0)
    stride = 2 * programs if TURNS else programs
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    step = 0
    turns = C  # consumer 0 has the first: a barrier that nobody has arrived at yet lets the phase before pass
    begin = gl.program_id(0)
    if TURNS and C == 1:
        first, last = steps_at(call, begin)
        step += last - first
        begin += programs
    m, n, batch = work_at(call, begin)
    for unit in range(begin, call.units, stride):
        row = ((n if SWAP else m) * BOXES + BOX) * ROWS
        column = (m if SWAP else n) * COLUMNS
        first, last = steps_at(call, unit)
        if TURNS:
            mbarrier.wait(turn.index(C), (turns & 1) ^ 1)
            turns += 1
        for k in range(first, last):
            slot = step % STAGES
            if TRANS_X:
                x = x_slots.index(slot * BOXES + BOX).reshape([BLOCK_K, ROWS]).permute((1, 0))
            else:
                x = x_slots.index(slot * BOXES + BOX).reshape([ROWS, BLOCK_K])
            if TRANS_Y:
                y = y_slots.index(slot).reshape([BLOCK_K, COLUMNS])
            else:
                y = y_slots.index(slot).reshape([COLUMNS, BLOCK_K]).permute((1, 0))
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            acc = warpgroup_mma(x, y, acc, use_acc=k > first, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # the step before
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > first)
            step += 1
        if TURNS:
            mbarrier.arrive(turn.index(1 - C))
        # Where the next tile is takes a few divisions: they hide here.
        next_m, next_n, next_batch = work_at(call, unit + stride)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))
        if TURNS:  # past the other consumer's steps
            first, last = steps_at(call, unit + programs)
            step += last - first

        if call.SPLIT and unit >= call.whole_tiles:
            r = gl.expand_dims(gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), 1)
            c = gl.expand_dims(gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT)), 0)
            origin = call.Partial + (unit - call.whole_tiles).to(gl.int64) * (BOXES * ROWS * COLUMNS)
            if SWAP:
                gl.store(origin + c * (BOXES * ROWS) + r + BOX * ROWS, acc, mask=c < call.columns - column)
            else:
                gl.store(origin + (r + BOX * ROWS) * COLUMNS + c, acc, mask=r < call.rows - row)
        else:
            if call.activation == 0 and call.bias_stride_row == 0 and call.bias_stride_column == 0:
                # Code of its own: instructions to pass over cost as much to fetch as instructions.
                write_plain(call.D, d_slot, acc, batch, row, column, call.alpha, SWAP)
            else:
                write_activated(call, d_slot, acc, batch, row, column)
        m, n, batch = next_m, next_n, next_batch
    tma.store_wait(0)


@gluon.jit
def multiply(
    A, B, D, Bias, Partial, alpha, activation, bias_stride_m, bias_stride_n, M, N, K, batch, whole_tiles, splits,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, BLOCK_K: gl.constexpr, CONSUMERS: gl.constexpr, TURNS: gl.constexpr,
    STAGES: gl.constexpr, SWAP: gl.constexpr, SPLIT: gl.constexpr, TRANS_A: gl.constexpr, TRANS_B: gl.constexpr,
):  # fmt: skip
    """The whole of a program. Without SPLIT, Partial, whole_tiles and splits are not looked at."""
    if SWAP:
        X = B
        Y = A
        rows, columns, bias_stride_row, bias_stride_column = N, M, bias_stride_n, bias_stride_m
    else:
        X = A
        Y = B
        rows, columns, bias_stride_row, bias_stride_column = M, N, bias_stride_m, bias_stride_n
    TRANS_X: gl.constexpr = not TRANS_B if SWAP else TRANS_A
    TRANS_Y: gl.constexpr = TRANS_A if SWAP else not TRANS_B
    BOXES: gl.constexpr = 1 if TURNS else CONSUMERS
    REGISTERS: gl.constexpr = 160 if CONSUMERS == 3 else 240
    PRODUCER_REGISTERS: gl.constexpr = 32 if CONSUMERS == 3 else 24
    x_slots = gl.allocate_shared_memory(X.dtype, [STAGES * BOXES, 1, X.block_shape[1], X.block_shape[2]], X.layout)
    y_slots = gl.allocate_shared_memory(Y.dtype, [STAGES, 1, Y.block_shape[1], Y.block_shape[2]], Y.layout)
    d_slots = gl.allocate_shared_memory(D.dtype, [CONSUMERS, 1, D.block_shape[1], D.block_shape[2]], D.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for c in gl.static_range(2):
        mbarrier.init(turn.index(c), count=1)

    tiles_x = gl.cdiv(rows, BOXES * ROWS)
    tiles_y = gl.cdiv(columns, COLUMNS)
    tiles_m = tiles_y if SWAP else tiles_x
    tiles_n = tiles_x if SWAP else tiles_y
    steps = gl.cdiv(K, BLOCK_K)
    units = tiles_m * tiles_n * batch
    if SPLIT:
        units = whole_tiles + (units - whole_tiles) * splits
    call = Call(
        D, Bias, Partial, X, Y, x_slots, y_slots, d_slots, full, empty, turn,
        rows, columns, alpha, activation, bias_stride_row, bias_stride_column,
        tiles_m, tiles_n, steps, units, whole_tiles, splits,
        BOXES, STAGES, TURNS, SPLIT, SWAP, TRANS_X, TRANS_Y,
    )  # fmt: skip
    loaded = load_first_steps(call)
    if CONSUMERS == 1:
        gl.warp_specialize([(consumer, (call, 0)), (producer, (call, loaded))], [1], [PRODUCER_REGISTERS])
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [(consumer, (call, 0)), (consumer, (call, 1)), (producer, (call, loaded))],
            [4, 1], [REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [(consumer, (call, 0)), (consumer, (call, 1)), (consumer, (call, 2)), (producer, (call, loaded))],
            [4, 4, 1], [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
