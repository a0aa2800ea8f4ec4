"""The messages of examples as operations on a stack of bits: bits-back coding.

V_i, the sum of the first i of n messages about data x, has the laws

    V_i | x        ~  N(beta_i m(x), v beta_i)
    V_{i-1} | V_i  ~  N((beta_{i-1} / beta_i) V_i, v beta_{i-1} alpha_i / beta_i),  whatever x is,

and the receiver expects a mixture over the values m' that the data might have,

    p_R(V_i | V_{i-1}) = sum_m' p_O(m') N(V_i | V_{i-1} + alpha_i m', v alpha_i).

The sender

    pops V_n | x,  pushes x | V_n  (the network's output at t = 1),  and for i = n .. 1
    pops V_{i-1} | V_i  (V_0 = 0: nothing to pop),  pushes V_i | V_{i-1}  (the receiver's mixture).

Pushing costs bits and popping gives them back, so the stack grows by a number of bits whose mean is
L^n + L^r, except for the width of the cells in which V is coded (`MessageGrid`). The receiver runs
the same steps backwards. Because V_{i-1} | V_i does not depend on x, at most two of the V are on
the stack at the same time: a few bits per number are enough to start with, whatever n is.

Any bits decode to something. So the sender occasionally pushes a four-bit zero, where the receiver
will have called the network 1, 4, 16, ... times (`CHECKED`). Invalid bits have something else
there; they are hardly ever decoded for more than three times as long as the valid ones above.

Data may have parts of different kinds. Each part has its own grids and alphabets: every push and
pop goes through the parts, and the network is called once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.codec.message import Certain, MessageGrid, Part, Step, data_distribution
from bfn.codec.stack import (
    Distribution,
    Floats,
    Integers,
    Joined,
    Stacks,
    damaged,
    random_words,
    uniform,
)
from bfn.flow import Theta
from bfn.model import BFN
from bfn.output import Output

CHECKED = (1, 4, 16, 64, 256, 1024)
"""Checks come after these numbers of network calls in a block, and after every multiple of the
last."""


class Chain:
    """One example per lane, or `width` of them, all lanes in lockstep through the same steps."""

    def __init__(
        self,
        model: BFN,
        shape: Sequence[int],
        steps: int,
        lanes: int,
        values: Sequence[float] | None = None,
        width: int = 1,
    ) -> None:
        self.model, self.lanes, self.n, self.width = model, lanes, steps, width
        self.rows = lanes * width
        self.shape = (self.rows, *shape)
        self.state_shape = model.flow.state_shape(self.shape)
        self.parts: list[Part] = []
        self.variables = self.numbers = 0
        symbols = model.head.part_symbols(values)
        kinds = zip(model.flow.parts, symbols, model.flow.part_shapes(shape), strict=True)
        self.even_bits = 0.0
        """The bits of an example without a model."""
        for flow, alphabet, own in kinds:
            count, state = math.prod(own), math.prod(flow.state_shape((1, *own)))
            variables = slice(self.variables, self.variables + count)
            numbers = slice(self.numbers, self.numbers + state)
            self.parts.append(Part(flow, alphabet, MessageGrid.of(flow, steps), variables, numbers))
            self.variables, self.numbers = variables.stop, numbers.stop
            self.even_bits += count * math.log2(alphabet.K)
        self.K = max(part.symbols.K for part in self.parts)
        """The size of the largest alphabet."""
        popped = sum(part.size * part.grid.popped_bits() for part in self.parts)
        self._popped: Floats = np.asarray(popped)
        words = np.ceil(self._popped / 16.0) + 1
        self._words = np.concatenate([[0], np.cumsum(words)]).astype(np.int64)

    def indices(self, x: Tensor) -> Integers:
        """Data (N, *shape) as indices of symbols, (N, variables)."""
        rows = x.reshape(len(x), self.variables)
        parts = [part.index(rows[:, part.variables]) for part in self.parts]
        return torch.cat(parts, 1).numpy()

    def data(self, k: Integers) -> Tensor:
        """The inverse of `indices`."""
        dtype, rows = self.model.dtype, torch.from_numpy(k)
        parts = [p.symbols.data(rows[:, p.variables], dtype) for p in self.parts]
        x = torch.cat(parts, 1).reshape(len(k), *self.shape[1:])
        return x if self.model.flow.integers else x.to(dtype)

    def per_number(self, values: Sequence[float]) -> Floats:
        """A value for each part, for every entry of V: (numbers,)."""
        return np.repeat(values, [part.size for part in self.parts])

    def encode(self, stacks: Stacks, x: Integers, index: Integers) -> tuple[Floats, Floats]:
        """Push x, indices (rows, variables), lane by lane; returns the bits of each part.

        index, (lanes,), gives the position in each block: `width` examples from `width` times the
        index on. Lanes that had too few bits are in `stacks.dry` afterwards, and cannot be decoded.

        The bits are those of the steps, (lanes, n), and of the data, (lanes,). Step i is charged
        for pushing V_i minus popping it. To be comparable with its term of L^n, it is also charged
        the entropy of the popped V minus that of a message; these add up to 0.
        """
        n, steps, last = self.n, np.zeros((self.lanes, self.n)), stacks.bits()

        def spent() -> Floats:
            """The bits since the last call."""
            nonlocal last
            before, last = last, stacks.bits()
            return last - before

        stacks.scramble(self._key(index, n))
        k = self._first(x).pop(stacks)
        steps[:, n - 1] = spent()
        self._data(self.output(k, n)).push(stacks, x)
        reconstruction = spent()
        for i in range(n, 0, -1):
            self._check(index, i).push(stacks, np.zeros((self.lanes, 1), np.int64))
            spent()  # a check belongs to no step
            earlier = np.zeros_like(k)
            if i > 1:
                stacks.scramble(self._key(index, i - 1))
                earlier = self.bridge(k, i).pop(stacks)
                steps[:, i - 2] = spent()
            self.message(earlier, i).push(stacks, k)
            steps[:, i - 1] += spent()
            k = earlier
        moved = self._popped - sum(part.size * part.grid.message_bits() for part in self.parts)
        steps[stacks.active] += self.width * (moved - moved.mean())
        return steps, reconstruction

    def decode(self, stacks: Stacks, index: Integers) -> Integers:
        """Pop indices (rows, variables)."""
        n = self.n
        k = np.zeros((self.rows, self.numbers), np.int64)
        for i in range(1, n + 1):
            later = self.message(k, i).pop(stacks)
            if stacks.dry:  # the sender's never are
                raise damaged("a block has fewer bits than its examples take")
            if i > 1:
                self.bridge(later, i).push(stacks, k)
                stacks.scramble(self._key(index, i - 1))
            if self._check(index, i).pop(stacks).any():
                raise damaged("a check inside a block failed")
            k = later
        x = self._data(self.output(k, n)).pop(stacks)
        self._first(x).push(stacks, k)
        stacks.scramble(self._key(index, n))
        return x

    def _check(self, index: Integers, i: int) -> Distribution:
        """A zero of four bits in the lanes where one is due after step i."""
        calls = index * self.n + i
        due = np.isin(calls, CHECKED) | (calls % CHECKED[-1] == 0)
        return uniform(np.full((self.lanes, 1), 16), due[:, None])

    def startup_bits(self, x: Integers | None = None) -> float:
        """The bits that a stack should hold before an example x, (variables,), is pushed.

        V_n is popped, and V_{n-1} and components before V_n is pushed. The chain also works with
        fewer bits, but an empty stack pops the most extreme cells, which are expensive to push.
        More bits would mean more start-up examples, at a higher rate. Only the sender needs this
        number."""
        popped = float(self._popped[-2:].sum())
        scatter = 2.0 * self.numbers**0.5  # 1.4 standard deviations of that
        return popped + scatter + (0.0 if x is None else self._component_bits(x))

    def _component_bits(self, x: Integers) -> float:
        """Estimate of the bits for choosing components: at most what the network knows of x."""
        data = self.data(x[None]).to(self.model.device)
        t = data.new_tensor([1.0 - 1.0 / self.n], dtype=self.model.dtype)
        generator = torch.Generator(data.device).manual_seed(0)
        theta = self.model.flow.sample(data, t, generator)
        bits = -float(self.model(theta, t).log_prob(data).detach().sum()) / math.log(2.0)
        return min(bits, self.even_bits) if math.isfinite(bits) else self.even_bits

    def marginal(self, t: float) -> Distribution:
        """The network's output at time t before any message."""
        return self._data(self._call(np.zeros((self.rows, self.numbers)), t))

    def output(self, k: Integers, i: int) -> Output:
        """The network's output after i steps, V_i = k delta_i."""
        return self._call(self._state(k, i), i / self.n) if i else self._before_messages

    @cached_property
    def _before_messages(self) -> Output:
        """Always the same: no example has sent anything yet."""
        return self._call(np.zeros((self.rows, self.numbers)), 0.0)

    def _state(self, k: Integers, i: int) -> Floats:
        return k * self.per_number([part.grid.delta[i] for part in self.parts])

    def _key(self, index: Integers, i: int) -> NDArray[np.int32]:
        """Random words to scramble the bits that V_i is popped from: (rows, words) per example.

        Bits from which components are chosen need none: the choice does not change the cost.
        """
        first, end = self._words[i - 1 : i + 1].tolist()
        examples = index[:, None] * self.width + np.arange(self.width)
        return random_words(examples.reshape(-1), first, end - first)

    def network(self, k: Integers, i: int) -> Tensor:
        """The raw network output for `output`."""
        return self.model.predict(*self._input(self._state(k, i), i / self.n))

    def _call(self, V: Floats, t: float) -> Output:
        with torch.inference_mode():  # 5% faster than no_grad
            return self.model(*self._input(V, t))

    def _input(self, V: Floats, t: float) -> tuple[Theta, Tensor]:
        flow, dtype, device = self.model.flow, self.model.dtype, self.model.device

        def on_device(values: Tensor) -> Tensor:
            # In this order: not every device has float64.
            return values.to(dtype).to(device)

        state = on_device(torch.from_numpy(V)).reshape(self.state_shape)
        time = torch.tensor(t, dtype=torch.float64)
        # One number for each part of the data, the same in every lane.
        beta = on_device(flow.schedule.beta(time))
        beta = flow.over(beta.expand(self.rows, *beta.shape), state)
        return Theta(state, beta), on_device(time.expand(self.rows))

    def message(self, k: Integers, i: int) -> Distribution:
        """Cells of V_i given those of V_{i-1}."""
        before, outputs = self._state(k, i - 1), self.output(k, i - 1).each()
        parts: list[tuple[slice, Distribution]] = []
        for part, output in zip(self.parts, outputs, strict=True):
            if part.grid.alpha[i] == 0:
                cells = Certain(k[:, part.numbers])
            else:
                cells = part.message(output, Step(part.grid, i, before[:, part.numbers]))
            parts.append((part.numbers, cells))
        return Joined(parts)

    def bridge(self, k: Integers, i: int) -> Distribution:
        """Cells of V_{i-1} given those of V_i."""
        return Joined([(p.numbers, p.bridge(k[:, p.numbers], i)) for p in self.parts])

    def _first(self, x: Integers) -> Distribution:
        """Cells of V_n given the data."""
        return Joined([(p.numbers, p.first(x[:, p.variables])) for p in self.parts])

    def _data(self, output: Output) -> Distribution:
        """The data's symbols by the network's output."""
        outputs = zip(self.parts, output.each(), strict=True)
        return Joined([(p.variables, data_distribution(each.law())) for p, each in outputs])
