"""The message of one example, as operations on a stack of bits (bits-back coding).

With V_i the sum of the first i messages, the sender

    pops V_n | x,  pushes x | V_n  (the network's output at t = 1),  and for i = n .. 1
    pops V_{i-1} | V_i  (V_0 = 0: nothing to pop),  pushes V_i | V_{i-1}  (the receiver's mixture).

Pushing costs bits and popping gives them back, so that the stack grows by

    log2 q(V_n | x) prod_i q(V_{i-1} | V_i) / (p(x | V_n) prod_i p(V_i | V_{i-1}))

whose mean over V is L^n + L^r, as far as the grid is fine. The receiver goes through it backwards:
for i = 1 .. n it pops V_i | V_{i-1} and pushes V_{i-1} | V_i; then it pops x | V_n and pushes
V_n | x. Because a bridge V_{i-1} | V_i does not depend on x, never more than two of the V have to
be on the stack: a few bits per number are enough to begin with, whatever n is.

Any bits decode to something. So the sender pushes a zero of four bits now and then, where the
receiver will have called the network 1, 4, 16, ... times (`CHECKED`). False bits have something
else there; they are hardly ever decoded for more than three times as long as the true ones above.

Where data have parts of different kinds, each has grids and alphabets of its own: every push and
pop above goes through the parts, and the network is called once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.codec.messages import Grid, Receiver, Step
from bfn.codec.stack import (
    Distribution,
    Floats,
    Integers,
    Joined,
    Stacks,
    damaged,
    gaussian,
    random_words,
    uniform,
)
from bfn.flow import Theta
from bfn.model import BFN
from bfn.output import Output

CHECKED = (1, 4, 16, 64, 256, 1024)
"""Checks come after these calls of the network since a block began, and after every multiple of the
last."""


@dataclass(frozen=True)
class Part:
    """Variables of one kind: where they are in an example and in V, and how they are coded."""

    shape: tuple[int, ...]
    grid: Grid
    receiver: Receiver
    variables: slice
    numbers: slice

    @property
    def size(self) -> int:
        """The number of entries of V."""
        return self.numbers.stop - self.numbers.start

    def bridge(self, k: Integers, i: int) -> Distribution:
        """Cells of V_{i-1} given those of V_i."""
        grid = self.grid
        scale = grid.beta[i - 1] / grid.beta[i] * grid.delta[i] / grid.delta[i - 1]
        std = float(grid.sd[i - 1] / grid.delta[i - 1])
        return gaussian(scale * k, std, int(grid.reach[i - 1]))

    def first(self, x: Integers) -> Distribution:
        """Cells of V_n given the data."""
        grid, n = self.grid, self.grid.n
        return gaussian(
            self.receiver.embed(x) * (grid.beta[n] / grid.delta[n]),
            float(grid.sd[n] / grid.delta[n]),
            int(grid.reach[n]),
        )


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
        for flow, alphabet, own in kinds:
            variables = slice(self.variables, self.variables + math.prod(own))
            state = math.prod(flow.state_shape((1, *own)))
            numbers = slice(self.numbers, self.numbers + state)
            receiver = Receiver(flow, alphabet)
            self.parts.append(Part(own, Grid.of(flow, steps), receiver, variables, numbers))
            self.variables, self.numbers = variables.stop, numbers.stop
        self.K = max(part.receiver.symbols.K for part in self.parts)
        """The size of the largest alphabet."""
        popped = sum(part.size * part.grid.popped_bits() for part in self.parts)
        self._popped: Floats = np.asarray(popped)
        words = np.ceil(self._popped / 16.0) + 1
        self._words = np.concatenate([[0], np.cumsum(words)]).astype(np.int64)

    @property
    def even_bits(self) -> float:
        """The bits of an example of which nothing is known."""
        parts = ((part, part.receiver.symbols.K) for part in self.parts)
        return sum(math.prod(part.shape) * math.log2(K) for part, K in parts)

    def indices(self, x: Tensor) -> Integers:
        """Data (N, *shape) as indices of symbols, (N, variables)."""
        rows = x.reshape(len(x), self.variables)
        found = [part.receiver.index(rows[:, part.variables]) for part in self.parts]
        return torch.cat(found, 1).numpy()

    def data(self, k: Integers) -> Tensor:
        """The inverse of `indices`."""
        dtype, rows = self.model.dtype, torch.from_numpy(k)
        found = [p.receiver.symbols.data(rows[:, p.variables], dtype) for p in self.parts]
        x = torch.cat(found, 1).reshape(len(k), *self.shape[1:])
        return x if self.model.flow.integers else x.to(dtype)

    def per_number(self, values: Sequence[float]) -> Floats:
        """A value for each part, for every entry of V: (numbers,)."""
        return np.repeat(values, [part.size for part in self.parts])

    def encode(self, stacks: Stacks, x: Integers, index: Integers) -> tuple[Floats, Floats]:
        """Push x, indices (rows, variables), lane by lane; returns the bits of each part.

        index says which examples of their blocks these are, (lanes,): from `width` times it on.
        Lanes that had too few bits are in `stacks.dry`; what they hold now would not be decoded.

        The bits are those of the steps, (lanes, n), and of the data, (lanes,). Step i is charged
        with pushing V_i less popping it. To compare with its term of L^n it is also charged with
        the entropy of what is popped less that of a message; these add up to 0.
        """
        n = self.n
        bits, steps = [stacks.bits()], np.zeros((self.lanes, n))
        stacks.scramble(self._key(index, n))
        k = self._first(x).pop(stacks)
        bits.append(stacks.bits())
        self._data(self.output(k, n)).push(stacks, x)
        bits.append(stacks.bits())
        reconstruction = bits[2] - bits[1]
        steps[:, n - 1] = bits[1] - bits[0]
        for i in range(n, 0, -1):
            self._check(index, i).push(stacks, np.zeros((self.lanes, 1), np.int64))
            before = stacks.bits()
            if i > 1:
                stacks.scramble(self._key(index, i - 1))
                earlier = self.bridge(k, i).pop(stacks)
                after = stacks.bits()
                steps[:, i - 2] = after - before
                before = after
            else:
                earlier = np.zeros_like(k)
            self.message(earlier, i).push(stacks, k)
            after = stacks.bits()
            steps[:, i - 1] += after - before
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
            if stacks.dry:  # as the sender's never are
                raise damaged("a block has fewer bits than its examples take")
            if i > 1:
                self.bridge(later, i).push(stacks, k)
                stacks.scramble(self._key(index, i - 1))
            if self._check(index, i).pop(stacks).any():
                raise damaged("the messages of a block are none that the model would send")
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

        V_n is popped, and V_{n-1} and components before V_n is pushed. The chain works with fewer
        bits, too, but an empty stack pops the most extreme cells, which are expensive to push.
        More would be examples that are coded at a higher rate. Only the sender needs to know.
        """
        popped = float(self._popped[-2:].sum())
        scatter = 2.0 * self.numbers**0.5  # 1.4 standard deviations of that
        return popped + scatter + (0.0 if x is None else self._component_bits(x))

    def _component_bits(self, x: Integers) -> float:
        """About what choosing components takes: no more than the network knows of x at step n."""
        data = self.data(x[None]).to(self.model.device)
        t = data.new_tensor([1.0 - 1.0 / self.n], dtype=self.model.dtype)
        generator = torch.Generator(data.device).manual_seed(0)
        theta = self.model.flow.sample(data, t, generator)
        bits = -float(self.model(theta, t).log_prob(data).detach().sum()) / math.log(2.0)
        return min(bits, self.even_bits) if math.isfinite(bits) else self.even_bits

    def marginal(self, t: float) -> Distribution:
        """The data's distribution as the network sees it at time t before any message."""
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
        """Random words for the bits that V_i is popped from, of each example: (rows, words).

        The bits from which components are chosen need none: the choice does not change the cost.
        """
        first, end = self._words[i - 1 : i + 1].tolist()
        examples = index[:, None] * self.width + np.arange(self.width)
        return random_words(examples.reshape(-1), first, end - first)

    def network(self, k: Integers, i: int) -> Tensor:
        """The network's bare numbers for `output`."""
        return self.model.predict(*self._input(self._state(k, i), i / self.n))

    def _call(self, V: Floats, t: float) -> Output:
        with torch.inference_mode():  # a twentieth faster than without gradients alone
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
        return Joined(
            [
                (p.numbers, p.receiver.message(output, Step(p.grid, i, before[:, p.numbers])))
                for p, output in zip(self.parts, outputs, strict=True)
            ]
        )

    def bridge(self, k: Integers, i: int) -> Distribution:
        """Cells of V_{i-1} given those of V_i."""
        return Joined([(p.numbers, p.bridge(k[:, p.numbers], i)) for p in self.parts])

    def _first(self, x: Integers) -> Distribution:
        """Cells of V_n given the data."""
        return Joined([(p.numbers, p.first(x[:, p.variables])) for p in self.parts])

    def _data(self, output: Output) -> Distribution:
        """The data's symbols by the network's output."""
        outputs = zip(self.parts, output.each(), strict=True)
        return Joined([(p.variables, p.receiver.data(each)) for p, each in outputs])
