"""Numbers that kernels and their descriptions agree on. Nothing is imported: rules/flash takes them without Triton."""

PAGE_STEP = 16  # rows: pages have a multiple of them, so that a box of a page has no fewer
SWIZZLED = 64  # columns of 16 bits that are swizzled together

INVARIANT_PART = 512  # keys of batch-invariant attention whose results are added up as one

LATENT = 512  # columns of a latent key that are its value, too
ROPE = 64  # the columns behind them
LATENT_TILE_ROWS = 64  # on Hopper

PLAN_TILE_ROWS = 128  # of two consumers
PLAN_STEP = 128  # keys: parts of a tile begin and end with multiples of it
PLAN_LEAST = 4  # steps of a part
PLAN_FIELDS = 8  # int32 of an item, and of a split tile
PLAN_COUNTS = 4  # int32: see ITEMS of plan.py
