"""Every number that somebody may want to change about how far off is too far.

Each has a text that says what it is derived from, or what it buys; the table of docs/tolerances.md
is made of these texts (`make tolerances`). They are read when they
are needed, as `tolerances.NAME`, so that a benchmark can change one and see what it does.

The factors are no thresholds of accuracy: they are how far an honest estimate may be off.
"""

from __future__ import annotations

# --- how many are many ---------------------------------------------------------------------------

MANY_ELEMENTS = 32
"""So many elements have a norm that is known well enough to be compared: to 1 / sqrt(2 * 32), an
eighth. Of fewer, each is the largest or smallest too often."""

ENOUGH_TO_CANCEL = 16
"""In the mean of so many elements errors cancel to a quarter, 1 / sqrt(16); in fewer they do
not."""

# --- rounding in a replay: the floor of each element ---------------------------------------------

SUM_SLACK = 2.0
"""A sum of n terms is off by 1 + sqrt(n) roundings of what it sums if its errors are independent
(Higham and Mary 2019), in the least lucky order; the mean is measured from few draws, so twice."""

SPREADS = 4.0
"""An operand's rounding is one draw for each element: four standard deviations cover all but
6e-5."""

# --- a call that cannot be replayed: its inputs, rounding and the run explain its distance -------

DISTANCE_SLACK = 5.0
"""The limit is an estimate from a few numbers of each tensor: statistics of noise alone stay below
2 of it."""

MODULE_SLACK = 40.0
"""A module is many steps, each of which may be off by as much the other way: eight times more."""

AVERAGE_SLACK = 2.0
"""Sums over many elements keep close to what is expected of them."""

MANY_STEPS_SLACK = 2.0
"""The way back through a recurrent network or attention has as many steps again as the way up."""

CANCELLED_SLACK = 10.0
"""A gradient of which everything may be noise may be several times as large as another noise."""

UNLIKE_INPUTS = 0.2
"""Of inputs that are so far apart there is nothing that a result has to be."""

TURNED = 64.0
"""Beyond so many times the usual noise a gradient's statistics tell of elements that turned
over."""

LONGEST_NORM_SUM = 64
"""Beyond so many terms (the root of it) kernels sum in parts when they measure a norm in
float32."""

TAILS = 4.0
"""Rows of a matrix differ in size; four standard deviations cover their tails in a product."""

COMMON_FACTOR = 4.0
"""A factor that largest, smallest and norm share is a fault from so many times what noise may
leave."""

RECORDED_ROUNDOFF = 2.0**-22
"""How finely mean and norm are recorded, relative: two bits less than float32 has, for the order in
which tools add them up."""

EQUAL_INPUTS = 64.0
"""Inputs within so many roundings count as equal where the precision of matrix products is
found."""

# --- a call against its peers: the same operation, earlier in the same run -----------------------

ENOUGH_CALLS = 5
"""So many rounded results have to agree before anything is known of the kernels."""

ENOUGH_PEER_ELEMENTS = 256
"""So many elements of peers have to agree; fewer fall to the same side of a rounding by chance."""

ENOUGH_MOVED = 2
"""One element may move by a rounding and be the largest; two statistics are more than that."""

LONG_SILENCE = 50
"""After so many results whose largest and smallest did not move, one that does is no chance."""

MEAN_BEYOND = 3.0
"""A mean that moved by so many times what the extremes explain was moved by other elements."""

ENOUGH_PEERS = 2
"""So many peers have to have shown what they do."""

PEER_NORMS = 2.5
"""Against peers, norms of noise of few bits alone stay below 1 of it."""

PEER_LONG_NORMS = 8.0
"""Norms of float32 against peers: those of TF32 stay below 4."""

HIDDEN_SHARE = 0.25
"""Of noise that is not seen a norm shows a part."""

LIKE_PEERS = 5.0
"""So many times as far off as a peer is still like it."""

# --- a replayed call: which error was made in it -------------------------------------------------

PEAK = 10.0
"""One element beyond its bound by this much is no tail of a distribution any more."""

PEAK_OF_OTHER = 4.0
"""A peak that the trusted run shows, too, counts from so many times its own."""

LEVEL = 3.0
"""A norm over many elements is known to an eighth, so three times its floor is a difference."""

ONCE = 1.5
"""Correct rounding has one outcome for each value: a level of 1. Truncation has 2, and nothing that
rounds once lies between."""

PEERS = 2.5
"""A level of so many times those of the same operation in other calls is another kernel's."""

LEAST_LEVEL = 0.7
"""Levels that are lower than correct rounding leaves are none of a fault."""

QUIET_PEERS = 0.1
"""Peers that make no error at all do not make a floor of 0."""

FACTOR = 3.0
"""A common factor is a fault from so many times what chance, peers and the trusted run show."""

FACTOR_DEVIATIONS = 3.0
"""Rounding has no common direction: of n elements it leaves 1 / sqrt(n) on their common factor, and
three standard deviations are what chance does."""

LEAST_FACTOR = 0.5
"""A factor that is less than half of the whole error is not what is wrong."""

USUAL_LEVEL = 2.0
"""The run works in a precision when half of its matrix products are within twice its floor."""

# --- from what is too far to who is named, and how sure that is ----------------------------------

LIKELY_TIMES = 4.0
"""What is off by so many times its limit is likely at fault: an estimate of a few numbers is not
off by that much again."""

BEYOND_DOUBT = 20.0
"""What is off by so many times its limit needs no replay to be named, and no earlier culprit
explains it."""

CERTAIN = 100.0
"""A replayed error of so many times its floor is a fault for certain."""

USUAL_TIMES = 16.0
"""Noise makes of a tensor so many times the distance that is usual in the run."""

PARAMETER_TIMES = 4.0
"""The same of a tensor that is likely a parameter, which no noise of the run has touched."""

SAME_RESULT = 32.0
"""So many roundings apart the ends of two runs are the same."""

SAME_GRADIENT = 256.0
"""The same of gradients, which cancel."""

SAME_SENT = 256.0
"""What a rank sends is bad from so many roundings on: gradients are what is sent mostly."""

BEYOND_NOISE = 64.0
"""What is so many times as far off as was usual before is no noise of the run."""

MEAN_HOLDS = 4.0
"""Values in other places: the mean moves by no more than so many times what noise may move it."""

NORM_MOVES = 50.0
"""And the largest and the norm move by so many times more."""

SUM_FITS = 64.0
"""A sum of replayed gradients has so many roundings that what it is compared with has not."""

SENDER_TIMES = 10.0
"""A gradient that fits so many times worse than another tells which call sent it."""

UNSEEN_SUM = 256.0
"""Statistics show less of a tensor than its elements, and a sum of gradients may cancel: so many
roundings."""

GATE_CHANCE = 0.02
"""A gate (relu, max) that turns with this probability is one to reckon with."""

MADE_ELSEWHERE = 64.0
"""A value that another kernel made before the run is off by so many roundings of float32."""

STORED_ROUNDINGS = 4.0
"""And by so many of the type that it is stored in."""

START_CALLS = 3
"""From so many calls on weights were not loaded, or drawn, alike: one tensor is a matter of its
own."""

START_SHARE = 0.3
"""And from this share of all tensors that came from outside."""

MODEL_SHARE = 0.5
"""Of two runs of one model at least this share is alike, however much one of them leaves out."""

MODEL_CALLS = 4
"""Fewer calls or parameters tell nothing of the model."""

# --- what kind of fault an error looks like ------------------------------------------------------

SPIKE = 8.0
"""Elements beyond so many times their bound are counted as wrong."""

ONE_THING = 0.95
"""An error is one thing alone when that explains all but a tenth of its square."""

FEW_WRONG = 1e-3
"""A fault of single elements has no more than this share of them wrong."""

ONLY_ROUNDING = 3.0
"""An error of up to so many times what is to be expected is rounding and nothing else."""

APPROXIMATION = 0.02
"""A smaller error is less than what other algorithms for the same function differ by."""

# --- runs that compute in other types ------------------------------------------------------------

TYPE_SHARE = 0.1
"""A run works in another type when this share of its forward calls do."""

TYPE_CALLS = 3
"""And so many calls at least: one alone is a call at fault."""

# --- one result against the precise one: the tolerance of the pre-check --------------------------

ROUNDINGS_FLOAT16 = 6.0
"""How many roundings of float16 a result may be off, before reductions: steps of sound kernels that
round in between, over the operator database."""

ROUNDINGS_BFLOAT16 = 1.75
"""The same of bfloat16, of which nearly all kernels compute in float32: a result is rounded once,
and what it is made of once. One per cent is more."""

ROUNDINGS_LONG = 64.0
"""The same of float32 and float64, in which approximations are computed."""

RESULT_SUM_SLACK = 2.0
"""A sum of n terms is off by sqrt(n) roundings at most, almost surely; sound kernels by twice
that."""

WIDEST = 2e-4
"""No result of float32 may be further off than this, however much it sums."""

COARSEST = 0.25
"""A larger rounding error leaves nothing of a number."""

NEIGHBOUR_STEPS = 1.0
"""Each rounding moves a number by half a step at most; a result and what it is made of are
rounded."""

OWN_SUM = 1.0
"""A sum of n numbers that is rounded after each addition is off by so many times sqrt(n)
roundings."""

MOST_OWN_SUM = 24.0
"""And by so many at most: kernels sum in parts."""

ONE_ELEMENT = 4.0
"""One element may be so many times as far off as the whole: four standard deviations."""

FEWEST_ALIKE = 6
"""Small errors that so many elements repeat for other inputs are no noise."""

SMALL_FAULT = 0.03
"""Sums that are kept in bfloat16 may be this far off, and are right: such errors are small."""

NOISE_FLOAT16 = 6.0
"""A result may be so many times as far from the precise one as rounding noise moves that."""

NOISE_BFLOAT16 = 3.0
"""The same of bfloat16, where one per cent is a few roundings."""

NOISE_LONG = 16.0
"""The same of float32 and float64, which have the digits for it."""

DRIFT_FLOAT16 = 4.0
"""A whole result that is larger or smaller by fewer roundings is not seen to drift."""

DRIFT_BFLOAT16 = 1.0
"""The same of bfloat16."""

DRIFT_LONG = 1600.0
"""The same of float32 and float64: an approximation may have one direction, 1e-4 of float32."""

NOISY_ELEMENT = 8.0
"""A single element may be so many times as far off as noisy runs move it."""

FEW_BEYOND = 1e-3
"""This share of elements may be further off: a few runs do not move each element that may jump."""

FURTHEST = 4.0
"""The one that is furthest off may be so many times as far as runs move any element."""

NOISY_DRIFT = 2.5
"""A drift of so many times that of noisy runs is one."""

DRIFT_SHARE = 0.5
"""Of sound kernels whose results cancel the largest drift seen is 0.4 of what noise moves."""

ILL_CONDITIONED = 4.0
"""So many times the rounding error of its inputs a result must move to be ill-conditioned."""

SAME_ROWS = 0.25
"""A part of the call gives what the whole gave, up to this share of a rounding error."""

ROWS_WITHOUT_SLACK = 80
"""A loss of 512 rows that is added up in bfloat16 is up to 3 roundings off, one of a few is not."""

MOST_LOSS_SLACK = 4.0
"""The most that the rows of a loss widen its tolerance."""

SETTLED_ROOM = 1.5
"""Where one layer's result is so far off, that of another may be a little further."""

SETTLED_ALIKE = 2.0
"""Numbers that are not more than so many times as large are about as large."""

LONGEST_WALK = 100.0
"""In more roundings than these of an input, an error of 1/1000 could hide."""

# --- whether errors are there again for other inputs ---------------------------------------------

MOVED_SHARE = 1 / 16
"""Inputs get smaller by up to this share: many steps of any dtype, and still in its range."""

ALIKE = 0.5
"""Errors that have nothing to do with each other have a cosine near 0, those of a fault one near 1:
half way between."""

ALIKE_IF_FEW = 0.9
"""Of fewer elements than cancel a cosine of a half may be chance."""

GONE_SHARE = 1 / 3
"""Of an error that is gone for other inputs less than this share is left."""

SUMMED_ROWS = 8
"""A result of so many times fewer elements than the gradients that are sent back sums over rows."""

# --- random numbers ------------------------------------------------------------------------------

DROPOUT_ROUNDINGS = 4.0
"""What a dropout keeps is scaled by a number that may be rounded, and rounded then."""

DROPOUT_DEVIATIONS = 4.0
"""A right dropout is this many standard deviations off once in sixteen thousand calls."""

DRAWS_APART = 2.7
"""Two draws from one distribution are further apart than this, in units of their sizes, once in a
million pairs (Kolmogorov and Smirnov)."""

DRAWS_SPREADS = 2.0
"""Of a few draws the two that are furthest apart are seldom half as far as any two may be."""
