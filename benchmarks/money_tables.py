"""Tables of money amounts, made by rule.

They have what makes such tables hard to model: many zeros, spikes at round numbers in a continuum
of whole numbers, heavy tails, amounts that nearly or exactly repeat another column, and sums of
other columns. Training rows and held-out rows come from the same law with different seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

ROUND = np.array(
    [500, 1000, 1500, 2000, 3000, 5000, 10_000, 15_000, 20_000, 30_000, 50_000, 100_000]
)


def money(name: str, rows: int = 30_000, seed: int = 0) -> pd.DataFrame:
    """The table called `name`: one of TABLES."""
    return TABLES[name](rows, np.random.default_rng([seed, *name.encode()]))


def card(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Credit cards: 24 columns, among them six months of bills, payments and payment statuses.

    Month 1 is the latest. bill_t = bill_{t+1} - paid_t + purchases + interest, in whole numbers; a
    customer who pays in full pays exactly the bill of the month before.
    """
    n = rows
    age = np.clip(21 + rng.gamma(2.4, 6.2, n), 21, 79).astype(int)
    sex = rng.choice(["female", "male"], n, p=[0.6, 0.4])
    education = np.array(["graduate", "university", "school", "other"])[
        np.clip(rng.normal(0.9 + 0.018 * (age - 35), 0.75, n).round(), 0, 3).astype(int)
    ]
    single = rng.random(n) < 1 / (1 + np.exp(0.13 * (age - 34)))
    marriage = np.where(single, "single", np.where(rng.random(n) < 0.97, "married", "other"))

    wealth = rng.normal(0, 1, n) + 0.5 * (education == "graduate") - 0.4 * (education == "school")
    wealth += 0.02 * np.minimum(age - 35, 15)
    raw = np.exp(11.55 + 0.8 * wealth)
    popular = np.array([10, 20, 30, 50, 80, 100, 150, 200, 300, 360, 500], float) * 1000
    nearest = popular[np.abs(np.log(raw[:, None] / popular)).argmin(1)]
    limit = np.where(rng.random(n) < 0.55, nearest, np.round(raw, -4))
    limit = np.clip(limit, 10_000, 1_000_000).astype(int)

    # Four habits: pays in full, revolves, hardly uses the card, falls behind.
    scores = np.stack(
        [0.7 * wealth - 0.1, np.full(n, 1.1), 0.3 * wealth - 1.1, -0.6 * wealth - 0.9], axis=1
    )
    habit = (scores + rng.gumbel(size=(n, 4))).argmax(1)
    full, revolving, idle, late = (habit == h for h in range(4))

    share = np.select(
        [full, revolving, idle],
        [rng.beta(0.7, 12, n), rng.beta(1.1, 1.0, n), 0.0],
        rng.beta(1.6, 1.1, n),
    )
    bill = (share * limit).astype(int)
    spending = np.exp(rng.normal(0, 0.7, n)) * np.select(
        [full, revolving, idle], [0.03, 0.016, 0.004], 0.012
    )
    behind = np.where(late, rng.poisson(0.7, n), 0)
    favourite = rng.integers(0, len(ROUND), n)  # some always pay the same round amount
    bills, paid, statuses = {}, {}, {}
    for month in range(6, 0, -1):
        before = bill
        minimum = np.minimum(
            np.maximum(before, 0), np.maximum(1000, np.ceil(0.05 * before))
        ).astype(int)
        wish = np.maximum(before, 0) * np.exp(rng.normal(-2.9, 0.8, n))
        rounded = ROUND[np.abs(np.log((wish[:, None] + 1) / ROUND)).argmin(1)]
        rounded = np.where(rng.random(n) < 0.3, ROUND[favourite], rounded)
        way = rng.random(n)
        pays = np.select(
            [way < 0.3, way < 0.66, way < 0.92],
            [minimum, np.minimum(rounded, np.maximum(before, 0)), wish.astype(int)],
            0,
        )
        exact = full & (rng.random(n) < 0.9)
        pays = np.where(exact, np.maximum(before, 0), pays)
        pays = np.where(idle & (rng.random(n) < 0.85), np.maximum(before, 0), pays)
        misses = late & (rng.random(n) < 0.3 + 0.4 * (behind > 0))
        pays = np.where(misses, 0, pays)
        over = (rng.random(n) < 0.012) & (before > 0)  # pays too much: a negative bill
        pays = np.where(over, before + ROUND[rng.integers(0, 4, n)] // 5, pays).astype(int)

        buys = rng.random(n) < np.select([full, revolving, idle], [0.9, 0.62, 0.16], 0.35)
        purchases = np.where(buys, spending * limit * np.exp(rng.normal(0, 0.9, n)), 0)
        refund = rng.random(n) < 0.004
        purchases = np.where(refund, -rng.integers(1, 3000, n), purchases)
        interest = np.where(full | idle, 0, 0.015 * np.maximum(before - pays, 0))
        bill = (before - pays + purchases + interest).astype(int)
        bill = np.minimum(bill, np.maximum((1.1 * limit).astype(int), before - pays))

        short = (before > 0) & (pays < minimum)
        # The first missed month is often booked as the second, as banks do.
        behind = np.where(
            short,
            np.where(behind == 0, rng.choice([1, 2], n, p=[0.3, 0.7]), behind + 1),
            np.maximum(behind - 2, 0),
        )
        behind = np.minimum(behind, 8)
        status = np.where(behind > 0, behind, 0)
        status = np.where((behind == 0) & (pays >= before) & (before > 0), -1, status)
        status = np.where((behind == 0) & (before <= 0), -2, status)
        bills[month], paid[month], statuses[month] = bill, pays, status

    use = bills[1] / limit
    logit = -2.5 + 0.75 * np.minimum(statuses[1], 3) * (statuses[1] > 0) + 0.35 * (statuses[2] > 0)
    logit += 0.3 * (statuses[4] > 0) + 0.6 * np.clip(use, 0, 1) - 0.35 * np.log(limit / 1e5)
    logit += 0.25 * (np.asarray(paid[1]) == 0) - 0.2 * (statuses[1] == -1) + 0.15 * (sex == "male")
    default = rng.random(n) < 1 / (1 + np.exp(-logit))
    columns = {"limit": limit, "sex": sex, "education": education, "marriage": marriage, "age": age}
    columns |= {f"status_{t}": statuses[t] for t in range(1, 7)}
    columns |= {f"bill_{t}": bills[t] for t in range(1, 7)}
    columns |= {f"paid_{t}": paid[t] for t in range(1, 7)}
    columns["default"] = np.where(default, "yes", "no")
    return pd.DataFrame(columns)


def household(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Household expenses: 22 columns in cents or whole numbers, sums of others among them."""
    n = rows
    persons = 1 + np.minimum(rng.poisson(1.5, n), 8)
    children = rng.binomial(np.maximum(persons - 1, 0), 0.42)
    age = np.clip(rng.normal(52, 16, n), 18, 95).astype(int)
    region = rng.choice(
        ["north", "east", "south", "west", "capital"], n, p=[0.2, 0.15, 0.25, 0.22, 0.18]
    )
    owner = rng.random(n) < 1 / (1 + np.exp(-0.05 * (age - 45) + 0.8 * (region == "capital")))
    mortgaged = owner & (rng.random(n) < 1 / (1 + np.exp(0.1 * (age - 55))))
    tenure = np.where(mortgaged, "mortgage", np.where(owner, "owned", "rented"))
    skill = rng.normal(0, 1, n) + 0.25 * (region == "capital")
    earning = np.exp(7.75 + 0.45 * skill + 0.3 * np.log(np.maximum(persons - children, 1)))
    earning *= np.where(rng.random(n) < 0.01, rng.pareto(1.8, n) + 2, 1)  # a heavy tail
    earning = np.where(rng.random(n) < 0.16, 0, earning)
    how = rng.random(n)  # people answer in round numbers
    wages = np.select(
        [how < 0.2, how < 0.42, how < 0.6],
        [
            np.round(earning / 1000) * 1000,
            np.round(earning / 500) * 500,
            np.round(earning / 100) * 100,
        ],
        np.round(earning, 2),
    )
    pension = np.where(
        (age > 64) & (rng.random(n) < 0.9), np.round(np.exp(rng.normal(7.1, 0.4, n)), 2), 0
    )
    benefits = np.where(
        rng.random(n) < 0.06 + 0.5 * (children > 0), 194.0 * np.maximum(children, 1), 0
    )
    income = np.round(wages + pension + benefits, 2)

    def some(probability: Any, values: Any) -> Any:
        return np.where(rng.random(n) < probability, values, 0.0)

    def rounded(values: Any, unit: float, probability: float) -> Any:
        return np.where(
            rng.random(n) < probability, np.round(values / unit) * unit, np.round(values, 2)
        )

    means = np.log(income + 400)
    rent = np.where(
        owner,
        0,
        rounded(
            np.exp(4.2 + 0.3 * means + 0.35 * (region == "capital") + rng.normal(0, 0.25, n)),
            50,
            0.75,
        ),
    )
    mortgage = np.where(
        mortgaged, rounded(np.exp(3.0 + 0.48 * means + rng.normal(0, 0.35, n)), 1, 0.1), 0
    )
    groceries = rounded(
        np.exp(2.9 + 0.28 * means + 0.45 * np.log(persons) + rng.normal(0, 0.3, n)), 10, 0.4
    )
    eating_out = some(0.7, rounded(np.exp(0.8 + 0.45 * means + rng.normal(0, 0.8, n)), 5, 0.6))
    food = np.round(groceries + eating_out, 2)
    energy = np.round(
        np.exp(3.9 + 0.12 * means + 0.3 * np.log(persons) + rng.normal(0, 0.35, n)), 2
    )
    fuel = some(0.68, rounded(np.exp(2.3 + 0.3 * means + rng.normal(0, 0.5, n)), 10, 0.5))
    fares = some(
        0.3, np.where(rng.random(n) < 0.45, 49.0, np.round(np.exp(rng.normal(3.4, 0.9, n)), 2))
    )
    transport = np.round(fuel + fares, 2)
    health = some(0.08 + 0.15 * (age > 64), np.round(np.exp(rng.normal(3.9, 1.5, n)), 2))
    schooling = some(
        0.03 + 0.25 * (children > 0), rounded(np.exp(rng.normal(4.6, 1.0, n)), 50, 0.6)
    )
    gifts = some(
        0.4,
        rng.choice([10, 20, 25, 50, 100, 200, 500], n, p=[0.1, 0.2, 0.1, 0.3, 0.2, 0.07, 0.03])
        * 1.0,
    )
    total = np.round(rent + mortgage + food + energy + transport + health + schooling + gifts, 2)
    return pd.DataFrame(
        {
            "persons": persons,
            "children": children,
            "age": age,
            "region": region,
            "tenure": tenure,
            "wages": wages,
            "pension": pension,
            "benefits": benefits,
            "income": income,
            "rent": rent,
            "mortgage": mortgage,
            "groceries": groceries,
            "eating_out": eating_out,
            "food": food,
            "energy": energy,
            "fuel": fuel,
            "transport": transport,
            "health": health,
            "schooling": schooling,
            "gifts": gifts,
            "total": total,
            "saved": np.round(income - total, 2),
        }
    )


def orders(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Orders of a shop: quantities, prices that end in .99, discounts, products and their sums."""
    n = rows
    customer = rng.choice(["private", "trade", "school"], n, p=[0.72, 0.22, 0.06])
    group = rng.choice(
        ["paper", "ink", "chairs", "desks", "screens"], n, p=[0.34, 0.28, 0.16, 0.1, 0.12]
    )
    level = pd.Series({"paper": 1.7, "ink": 3.1, "chairs": 4.6, "desks": 5.4, "screens": 5.3})
    price = np.exp(level[group].to_numpy() + rng.normal(0, 0.45, n))
    price = np.where(rng.random(n) < 0.7, np.floor(price) + 0.99, np.round(price, 2))
    many = rng.random(n) < np.where(customer == "private", 0.08, 0.5)
    quantity = np.where(
        many,
        rng.choice([5, 10, 12, 20, 25, 50, 100], n, p=[0.2, 0.28, 0.1, 0.16, 0.08, 0.12, 0.06]),
        1 + rng.poisson(0.5, n),
    )
    net = np.round(price * quantity, 2)
    rate = np.select(
        [net > 1000, net > 250], [rng.choice([0, 5, 10, 15], n), rng.choice([0, 0, 5], n)], 0
    )
    rate = np.where((customer == "school") & (rate == 0), 5, rate)
    discount = np.round(net * rate / 100, 2)
    shipping = np.where(net - discount >= 50, 0.0, np.where(customer == "private", 4.9, 3.9))
    shipping = np.where(np.isin(group, ["chairs", "desks"]) & (quantity > 4), 49.0, shipping)
    tax = np.round(0.19 * (net - discount + shipping), 2)
    total = np.round(net - discount + shipping + tax, 2)
    unpaid = rng.random(n) < np.where(customer == "private", 0.03, 0.12)
    paid = np.where(unpaid, np.where(rng.random(n) < 0.5, 0, np.round(total / 2, 2)), total)
    voucher = (rng.random(n) < 0.07) & (total > 20) & ~unpaid
    paid = np.where(voucher, np.round(total - rng.choice([5, 10, 20], n), 2), paid)
    returned = rng.random(n) < 0.04 + 0.05 * (group == "screens") + 0.04 * (customer == "private")
    refund = np.where(
        returned, np.where(rng.random(n) < 0.7, paid, np.round(paid / quantity, 2)), 0
    )
    return pd.DataFrame(
        {
            "customer": customer,
            "group": group,
            "quantity": quantity,
            "price": price,
            "net": net,
            "rate": rate,
            "discount": discount,
            "shipping": shipping,
            "tax": tax,
            "total": total,
            "paid": paid,
            "refund": refund,
            "returned": returned,
        }
    )


TABLES = {"card": card, "household": household, "orders": orders}
TARGETS = {"card": "default", "household": "energy", "orders": "returned"}
