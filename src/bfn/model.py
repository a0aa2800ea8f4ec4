"""BFN = network + flow + head, and the four ways to make one."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from bfn import saving
from bfn.errors import BFNError, Diverged, check_integer, suggestion, without_none
from bfn.flow import (
    BayesianFlow,
    BinaryFlow,
    CategoricalFlow,
    GaussianFlow,
    MixedFlow,
    Theta,
)
from bfn.flow.mixed import Layout, naming
from bfn.output import (
    BernoulliHead,
    BinnedHead,
    Bins,
    CategoricalHead,
    FreeBinnedHead,
    Head,
    Lengths,
    MeasurementNoise,
    MixedHead,
    Output,
    PointHead,
    SmoothBinnedHead,
)
from bfn.output.lengths import as_lengths
from bfn.recipe.suggest import suggest_beta_1, suggest_sigma_1
from bfn.saving import README, Card
from bfn.schedule import Exponential, Quadratic, Schedule
from bfn.schedule import find as find_schedule

Factory = TypeVar("Factory", bound=Callable[..., Any])


class BFN(nn.Module):
    """A Bayesian Flow Network.

    `net(features, t, **cond)` may be any module: features have the data's shape (B, *shape), with a
    last axis K for K > 2 classes; t is (B,); the result has the data's shape with a last axis of
    `head.parameters` numbers per variable, which is dropped if there is only one. The numbers are
    finite: a logit of -1e4, not -inf, rules a class out.
    """

    def __init__(self, net: nn.Module, flow: BayesianFlow, head: Head) -> None:
        super().__init__()
        self.net, self.flow, self.head = net, flow, head
        self.data_format: dict[str, Any] | None = None
        """The format of the data, as in `bfn.data.DataSet.describe`; None if unknown."""
        self.lengths: Lengths | None = None
        """The distribution of lengths if examples have different ones; counted in training."""
        self.train_known: float | None = None
        """The `train.known` of its training; None if unknown."""
        self._blank: tuple[Any, Tensor] | None = None
        self._widest: Tensor | None = None
        """While evaluating: the widest range of numbers that the network returned for an example,
        which is finite if they all are."""

    def forward(self, theta: Theta, t: Tensor, **cond: Any) -> Output:
        """p_O(. | theta; t)."""
        return self.output(self.predict(theta, t, **cond), theta, t, cond.get("mask"))

    def output(
        self, net_output: Tensor, theta: Theta, t: Tensor, mask: Tensor | None = None
    ) -> Output:
        """p_O(. | theta; t) from the result of `predict`; variables that do not exist are blank."""
        output = self.head(net_output, theta, self.flow.schedule.inside(t))
        if mask is None:
            return output
        return output.pin(self.blank(mask.shape).expand(mask.shape), ~mask)

    def predict(
        self, theta: Theta, t: Tensor, *, mask: Tensor | None = None, **cond: Any
    ) -> Tensor:
        """The network's output, before the head; the network is called nowhere else.

        Where the mask, (B, *shape), is false, a variable does not exist: the network receives the
        mask, and none of the variable's features.
        """
        if mask is not None:
            V = torch.where(self.flow.spread(mask, theta.V), theta.V, 0.0)
            theta, cond["mask"] = Theta(V, theta.beta), self.flow.unpack_mask(mask)
        net_output = self.net(self.head.features(self.flow, theta), t, **cond)
        net_output = self.head.read(net_output, self.flow.data_shape(theta))
        # Losses, exponentials and sums of many terms need float32, even if the network does not.
        if net_output.dtype in (torch.float16, torch.bfloat16):
            net_output = net_output.float()
        if self._widest is not None and net_output.numel():
            numbers = net_output.detach().flatten(1)
            # Before t_min the head ignores the network.
            early = self.flow.schedule.inside(t) < self.head.t_min
            ranges = torch.where(early, 0.0, numbers.amax(1) - numbers.amin(1))
            self._widest = torch.maximum(self._widest.to(ranges), ranges.amax())
        return net_output

    def pack(self, x: Any) -> Tensor:
        """Data as one tensor: mixed data as rows of numbers, other data as they are."""
        return self.flow.pack(x, self.dtype)

    def check(self, x: Tensor) -> None:
        """Raise `BFNError` unless x is legal data for this model: type, range, no NaN.

        Reads values back from the device. Data loaders call it once; the losses call it only for
        tensors on the CPU, where it needs no synchronisation.
        """
        self.flow.check(x)
        self.head.check(x)

    def blank(self, shape: Sequence[int]) -> Tensor:
        """Valid data for variables that do not exist, (1, *shape), for a batch of that shape."""
        key = (tuple(shape[1:]), self.device, self.dtype, self.head)
        if self._blank is None or self._blank[0] != key:
            self._blank = key, self._blank_of((1, *shape[1:]))
        return self._blank[1]

    @torch.inference_mode(False)
    def _blank_of(self, shape: tuple[int, ...]) -> Tensor:
        theta = self.flow.prior(shape, device=self.device, dtype=self.dtype)
        nothing = theta.V.new_zeros(self.head.output_shape(shape))
        return self.head(nothing, theta, theta.V.new_zeros(1)).mode()

    def without_padding(self, x: Tensor, cond: dict[str, Any]) -> Tensor:
        """x, blank wherever `mask` or `length` among the conditions say that nothing exists.

        Afterwards the conditions are those of the network: a mask in the shape of x.
        """
        mask, length = cond.pop("mask", None), cond.pop("length", None)
        if mask is None and length is None:
            if self.lengths is None:
                return x
            raise BFNError(
                "the model's examples have different lengths; give length=, a whole number for "
                "each example, or mask= (bfn.train.fit and bfn.evaluate.evaluate take lengths=)"
            )
        cond["mask"] = self.existing(x, mask, length)
        return torch.where(cond["mask"], x, self.blank(x.shape).to(x))

    def existing(self, x: Tensor, mask: Any, length: Any) -> Tensor:
        """Which variables of x exist, given a mask or the length of each example: (B, *shape)."""
        if length is not None:
            if mask is not None:
                raise BFNError("a mask and lengths both say what exists; give one of them")
            longest = self.flow.longest(x.shape[1:])
            length = as_lengths(length, longest, len(x)).to(x.device)
            mask = torch.arange(longest, device=x.device) < length[:, None]
        mask = self.flow.pack_existing(mask, x)
        if mask.device.type == "cpu" and not bool(mask.flatten(1).any(1).all()):
            raise BFNError("the mask hides an entire example; leave that example out")
        if not takes(self.net, "mask"):
            raise BFNError(
                f"the network, {type(self.net).__name__}, does not take a mask of the variables "
                "that exist; use bfn.nn.Transformer, build an MLP with mask=True, or let the "
                "forward of your own network take mask"
            )
        return mask

    @property
    def device(self) -> torch.device:
        first = _first_parameter(self)
        return torch.device("cpu") if first is None else first.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of theta where the data are integers: the network's, but at least float32."""
        first = _first_parameter(self)
        dtype = torch.get_default_dtype() if first is None else first.dtype
        return dtype if dtype == torch.float64 else torch.float32

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Turn off dropout and gradients; every submodule's mode is restored afterwards.

        If the network returned NaN or infinity, `bfn.errors.Diverged` is raised at the end, since
        checking every call would synchronise with the device.
        """
        modes = [(module, module.training) for module in self.modules()]
        outer, self._widest = self._widest, torch.zeros(())
        self.eval()
        try:
            with torch.no_grad():
                yield
            if not bool(self._widest.isfinite()):
                raise Diverged(
                    "the network returned numbers that are not finite; train the model again with "
                    "a smaller learning rate or in float32, or fix the guide if there is one"
                )
        finally:
            self._widest = outer
            for module, training in modes:
                module.training = training

    def save_pretrained(
        self, folder: str | Path, *, card: Card | None = None, store: torch.dtype | None = None
    ) -> None:
        """Write config.json and model.safetensors, which `from_pretrained` reads, and a card.

        Args:
            folder: created if it does not exist; an earlier saved model in it is replaced, but a
                training run and other files are refused.
            card: content of README.md beyond what the model itself knows; without a card, an
                existing README.md is kept.
            store: a smaller type for the file, such as torch.float16; the network is loaded in
                its present type.
        """
        folder = Path(folder)
        saving.check_free(folder)
        saving.save(folder, self.config(), self.net.state_dict(), store)
        if card is not None or not (folder / README).exists():
            (card or Card()).write(folder, self.net, self.head, self.data_format)

    def push_to_hub(
        self,
        repository: str,
        *,
        card: Card | None = None,
        private: bool | None = None,
        token: str | None = None,
    ) -> str:
        """Upload the model and its card to owner/name on the Hugging Face hub; returns its address.

        Needs huggingface_hub (pip install 'bfn[hub]') and a login or a token.
        """
        card = dataclasses.replace(card or Card(title=repository), name=repository)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, card=card)
            return saving.upload(Path(folder), repository, private=private, token=token)

    def config(self) -> dict[str, Any]:
        """Everything except the weights that is needed to rebuild this model."""
        return {
            "format_version": saving.FORMAT_VERSION,
            "net": saving.describe_network(self.net),
            "flow": saving.describe(self.flow),
            "head": saving.describe(self.head),
            **without_none(
                lengths=saving.describe(self.lengths),
                train_known=self.train_known,
                data=self.data_format,
            ),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, net: nn.Module | None = None, trust: bool = False
    ) -> BFN:
        """The model that a config describes, untrained; arguments as in `from_pretrained`."""
        flow = saving.build(config["flow"], BayesianFlow, trust=trust)
        model = cls(
            saving.build_network(config["net"], trust=trust) if net is None else net,
            flow,
            saving.build(config["head"], Head, trust=trust, flow=flow),
        )
        model.data_format = config.get("data")
        known = config.get("train_known")
        model.train_known = known if isinstance(known, int | float) else None
        if "lengths" in config:
            model.lengths = saving.build(config["lengths"], Lengths, trust=trust)
        return model

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        net: nn.Module | None = None,
        trust: bool = False,
        revision: str | None = None,
        token: str | None = None,
    ) -> BFN:
        """A saved model, in evaluation mode.

        Args:
            name: a folder written by `save_pretrained` or by training; the name of a model that
                is shipped with bfn, such as "digits"; or owner/name on the Hugging Face hub.
            net: a network to load the weights into, instead of the one that config.json names; for
                your own class that cannot be imported by that name.
            trust: whether to import and run classes that are not part of bfn, if config.json names
                any; otherwise these are refused, and loading runs only bfn's own code.
            revision: a branch, tag or commit on the hub.
            token: for models on the hub that are not public.
        """
        if net is not None and not isinstance(net, nn.Module):
            raise BFNError(f"net = {net!r}; expected a network, as in net=MyNet(width=64)")
        folder = saving.locate(name, revision=revision, token=token)
        config = saving.load_config(folder)
        weights = saving.read_weights(folder, config)
        with saving.Bounded(config["net"], weights):
            model = cls.from_config(config, net=net, trust=trust)
        saving.fill(model.net, weights, config.get("dtype"))
        return model.eval()

    def extra_repr(self) -> str:
        return f"flow={self.flow}, head={self.head}"


def innermost(model: Any) -> BFN:
    """The model inside all wrappers of `bfn.guidance`; raises `BFNError` if it is not a model."""
    while not isinstance(model, BFN) and hasattr(model, "flow") and hasattr(model, "model"):
        model = model.model
    if not hasattr(model, "flow"):
        what = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise BFNError(
            f"the model is {what}; expected a bfn.BFN, as from bfn.BFN.from_pretrained, or a "
            "network in bfn.continuous, bfn.discretised or bfn.discrete"
        )
    return model


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """The first parameter, without walking all modules; every loss calls this."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None and (inner := _first_parameter(child)) is not None:
            return inner
    return None


def takes(net: nn.Module, name: str) -> bool:
    """Whether the network accepts this condition and was built to use it."""
    parameters = inspect.signature(net.forward).parameters
    if name in parameters:
        return bool(getattr(net, "arguments", {}).get(name, True))
    # Wrappers that compile or parallelise a network pass all conditions on.
    inner = getattr(net, "net", getattr(net, "module", None))
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return anything and (takes(inner, name) if isinstance(inner, nn.Module) else True)


KINDS: dict[str, Callable[..., BFN]] = {}
"""How to build a model of each data type, by its name in a recipe's flow.kind."""


def register_kind(name: str) -> Callable[[Factory], Factory]:
    """Decorator that lets recipes name a data type: a function (net, **arguments) -> BFN.

    A data type is a `bfn.flow.BayesianFlow` and a `bfn.output.Head`; models built from them in
    Python need no name.
    """

    def add(factory: Factory) -> Factory:
        KINDS[name] = factory
        return factory

    return add


@register_kind("continuous")
def continuous(
    net: nn.Module,
    sigma_1: float | None = None,
    *,
    schedule: str | Schedule | None = None,
    reconstruction: MeasurementNoise | Bins | None = None,
    **head: Any,
) -> BFN:
    """A model of real numbers in [-1, 1].

    Args:
        net: outputs one number per variable.
        sigma_1: the standard deviation left at t = 1, after the last message; 0.02 by default.
        schedule: how accuracy grows with time: a name of `bfn.schedule.SCHEDULES`, by default
            "exponential", or an object such as `bfn.Exponential(0.02)`, in a recipe a table with
            that class and its arguments, in place of sigma_1.
        reconstruction: how finely L^r measures the data: `bfn.MeasurementNoise(sigma)` or
            `bfn.Bins(K, sigma)`, in a recipe a table with that class and its arguments; by
            default to within sigma_1.
        head: t_min, below which the network's output is not used, and the bounds x_min and x_max
            of the prediction.
    """
    flow = GaussianFlow(_schedule(schedule, Exponential, sigma_1, lambda: 0.02))
    return BFN(net, flow, PointHead(reconstruction=reconstruction, **head))


@register_kind("discretised")
def discretised(
    net: nn.Module,
    K: int,
    sigma_1: float | None = None,
    *,
    schedule: str | Schedule | None = None,
    head: Literal["plain", "posterior", "smooth"] = "plain",
    **options: Any,
) -> BFN:
    """A model of numbers in K bins of [-1, 1].

    Args:
        net: outputs 2 numbers per variable for the plain head, K for the posterior one.
        K: the number of bins.
        sigma_1: the standard deviation left at t = 1, after the last message; by default
            `bfn.suggest_sigma_1(K)`.
        schedule: how accuracy grows with time: a name of `bfn.schedule.SCHEDULES`, by default
            "exponential", or an object such as `bfn.Exponential(0.02)`, in a recipe a table with
            that class and its arguments, in place of sigma_1.
        head: "plain" is the paper's Gaussian cut into bins, whose cost does not depend on K;
            "posterior" gives every bin a logit, to which the received evidence is added; "smooth"
            does the same with few numbers per variable (`bfn.output.binned`).
        options: t_min, below which the network's output is not used; for the plain head the bounds
            ln_sigma_epsilon and sigma_x of the predicted deviation; for the posterior head inputs,
            as in `discrete`; for the smooth one its spikes and cosines.
    """
    flow = GaussianFlow(_schedule(schedule, Exponential, sigma_1, lambda: suggest_sigma_1(K)))
    if head == "smooth":
        return BFN(net, flow, SmoothBinnedHead(K, **options))
    if _is_posterior(head):
        return BFN(net, flow, FreeBinnedHead(K, posterior=True, **options))
    return BFN(net, flow, BinnedHead(K, **options))


@register_kind("discrete")
def discrete(
    net: nn.Module,
    K: int,
    beta_1: float | None = None,
    *,
    schedule: str | Schedule | None = None,
    head: Literal["plain", "posterior"] = "plain",
    inputs: Literal["theta", "posterior"] = "theta",
    chunk: int | None = None,
) -> BFN:
    """A model of K classes; for K = 2 the network sees one number and outputs one logit.

    Args:
        net: outputs K logits per variable, or one if K = 2.
        K: the number of classes.
        beta_1: the total accuracy of all messages; by default `bfn.suggest_beta_1(K)`.
        schedule: how accuracy grows with time: a name of `bfn.schedule.SCHEDULES`, by default
            "quadratic", or an object such as `bfn.Quadratic(3.0)`, in a recipe a table with that
            class and its arguments, in place of beta_1.
        head: "plain", the paper's, uses the logits unchanged; "posterior" adds the received
            evidence, and the data's marginals once they are known from training.
        inputs: "theta", the paper's, or "posterior": the network sees the posterior of each
            variable under the marginals.
        chunk: number of variables per chunk in losses, to save memory, as for K = 50,000.
    """
    if not isinstance(K, int) or K < 2:
        raise BFNError(f"K = {K!r} classes; discrete data have a whole number, at least 2")
    posterior = _is_posterior(head)
    schedule = _schedule(schedule, Quadratic, beta_1, lambda: suggest_beta_1(K), K)
    if K == 2:
        return BFN(net, BinaryFlow(schedule), BernoulliHead(posterior, inputs=inputs))
    own = CategoricalHead(K, chunk, posterior, inputs=inputs)
    return BFN(net, CategoricalFlow(K, schedule), own)


def _schedule(
    chosen: str | Schedule | None,
    paper: Callable[[float], Schedule],
    end: float | None,
    default: Callable[[], float],
    K: int | None = None,
) -> Schedule:
    """The paper's schedule with that end, or the chosen one, which ends at the same accuracy."""
    if isinstance(chosen, Schedule):
        if end is not None:
            raise BFNError(
                f"schedule = {chosen} already sets the final accuracy; leave out {end}, or give "
                "the schedule by its name"
            )
        return chosen
    schedule = paper(default() if end is None else end)
    if chosen is None:
        return schedule
    return find_schedule(chosen)(float(schedule.beta(torch.ones((), dtype=torch.float64))), K)


def _is_posterior(head: str) -> bool:
    if head not in ("plain", "posterior"):
        raise BFNError(f"head = {head!r}; expected 'plain' or 'posterior'")
    return head == "posterior"


class Variable:
    """A variable of mixed data: its kind, its shape in one example, and the kind's arguments.

        bfn.Variable("discrete", (9,), K=5)
        bfn.Variable("continuous", (9, 3), sigma_1=0.05)

    Args:
        kind: "continuous", "discretised", "discrete", or one that `register_kind` was given.
        shape: of one example; () for a single number or class.
        arguments: those of the function of that name, such as K, sigma_1, beta_1 and head.
    """

    def __init__(self, kind: str, shape: Sequence[int] = (), **arguments: Any) -> None:
        kinds = [name for name in KINDS if name != "mixed"]
        if kind not in kinds:
            raise BFNError(f"unknown kind {kind!r} of a variable{suggestion(kind, kinds)}")
        self.kind, self.arguments = kind, arguments
        try:
            self.shape = tuple(check_integer("shape", size, 1) for size in shape)
        except TypeError:
            raise BFNError(f"shape = {shape!r}; expected sizes, as in (9, 3), or ()") from None
        try:
            model = KINDS[kind](nn.Identity(), **arguments)
        except TypeError as error:
            # Only the factory and its head know which arguments they take.
            name = re.search(r"'(\w+)'", str(error))
            verb = "needs the" if "missing" in str(error) else "takes no"
            problem = f"it {verb} argument {name[1]}" if name else str(error)
            raise BFNError(f"a {kind} variable cannot be made: {problem}") from None
        self.flow, self.head = model.flow, model.head

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of its features for one example."""
        return tuple(self.head.features(self.flow, self.flow.prior((1, *self.shape))).shape[1:])

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of the network's output for it, for one example."""
        return self.head.output_shape((1, *self.shape))[1:]

    def __repr__(self) -> str:
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"Variable({self.kind!r}, {self.shape}{arguments})"


@register_kind("mixed")
def mixed(net: nn.Module, variables: Mapping[str, Variable | Mapping[str, Any]]) -> BFN:
    """A model of named variables of any kinds, which one network sees together.

    Data x are dicts of tensors (B, *shape), by name. The network takes a dict of features and
    returns a dict, of shapes `Variable.inputs` and `Variable.outputs`.

    Args:
        net: net(features, t, **cond) of dicts, such as `bfn.nn.MixedMLP`.
        variables: by name; in a recipe each is a table with kind, shape and the kind's arguments.
    """
    if not isinstance(variables, Mapping) or not variables:
        raise BFNError(
            f"variables = {variables!r}; expected a dict with at least one, as in "
            "{'age': bfn.Variable('discretised', K=64)}"
        )
    parts: dict[str, Variable] = {}
    for name, variable in variables.items():
        with naming(name):
            if isinstance(variable, Mapping) and "kind" in variable:
                variable = Variable(**variable)
            if not isinstance(variable, Variable):
                raise BFNError(
                    f"{variable!r} was given; expected bfn.Variable('discrete', K=5) or the like, "
                    "in a recipe a table with its kind"
                )
            parts[name] = variable
    layout = Layout(tuple(parts), tuple(part.shape for part in parts.values()))
    flow = MixedFlow(layout, tuple(part.flow for part in parts.values()))
    return BFN(net, flow, MixedHead(flow, tuple(part.head for part in parts.values())))
