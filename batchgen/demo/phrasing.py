"""How people write an order: one `Order`, many possible messages.

A message is a greeting, a request, sometimes a reference number that must not be taken for a
quantity, a date, a word on urgency and a closing; each part is drawn from its own list.
"""

import random
from typing import TYPE_CHECKING, Final

from batchgen.demo.words import MONTHS, NUMBER_WORDS, UNITS

if TYPE_CHECKING:
    from batchgen.demo.orders import Order

GREETINGS: Final = (
    "",
    "",
    "",
    "Hi, ",
    "Hello, ",
    "Hello there, ",
    "Good morning, ",
    "Good afternoon, ",
    "Dear team, ",
    "Hi team, ",
)

REQUESTS: Final = (
    "please send {amount} of {item} to {customer} in {city}{by}.",
    "{customer} from {city} needs {amount} of {item}{by}.",
    "{customer} in {city} would like {amount} of {item}{by}.",
    "this is {customer} from {city}. I would like to order {amount} of {item}{by}.",
    "this is {customer}. We need {amount} of {item} in {city}{by}.",
    "new order for {customer}, {city}: {amount} of {item}{by}.",
    "could you ship {amount} of {item} to {city}{by}? The customer is {customer}.",
    "our shop in {city} is out of {item}. Please deliver {amount}{by}. My name is {customer}.",
    "my name is {customer} and I want {amount} of {item}{by}. Deliver to {city}.",
    "{amount} of {item} for {customer}{by}. Ship it to {city}.",
    "can we get {amount} of {item}{by}? We are in {city}. Ask for {customer}.",
    "{customer} just called from {city} and asked for {amount} of {item}{by}.",
)

DATES: Final = (
    " by {day} {month}",
    " by {month} {day}",
    " before {day} {month}",
    " no later than {month} {day}",
    " on {day} {month}",
    " on {month} {day}",
    " by the {nth} of {month}",
    " on the {nth} of {month}",
    " for {month} {nth}",
)

LATE_DATES: Final = (
    " It has to be here on {day} {month}.",
    " We expect it by {month} {day}.",
    " Delivery date is {day} {month}.",
    " The {nth} of {month} would be fine.",
    " Due {month} {nth}.",
)

REFERENCES: Final = (
    " Our reference is {number}.",
    " Reference number {number}.",
    " Please write {number} on the invoice.",
    " You can call me at {number}.",
)

URGENT: Final = (
    " This is urgent.",
    " It is very urgent!",
    " Urgent!",
    " Please hurry.",
    " We need it as soon as possible.",
    " We cannot wait any longer.",
    " Rush order!",
    " Top priority, please.",
)

CALM: Final = (
    "",
    "",
    "",
    "",
    " There is no hurry.",
    " No rush.",
    " This is not urgent.",
    " Take your time.",
    " It can wait if needed.",
)

CLOSINGS: Final = (
    "",
    "",
    "",
    " Thanks!",
    " Thank you.",
    " Many thanks.",
    " Best regards.",
    " Kind regards.",
    " See you soon.",
)


def message(order: "Order", rng: random.Random) -> str:
    """`order` in one of the ways in which people write it, chosen by `rng`."""
    late = rng.random() < 0.3
    date = _date(order.due, rng.choice(LATE_DATES if late else DATES))
    request = rng.choice(REQUESTS).format(
        amount=_amount(order, rng),
        item=order.item,
        customer=order.customer,
        city=order.city,
        by="" if late else date,
    )
    extras = [rng.choice(URGENT if order.urgent else CALM)]
    if rng.random() < 0.25:
        extras.append(rng.choice(REFERENCES).format(number=rng.randrange(1_000, 100_000)))
    rng.shuffle(extras)
    if late:
        extras.insert(rng.randrange(len(extras) + 1), date)
    greeting = rng.choice(GREETINGS)
    if not greeting:
        request = request[0].upper() + request[1:]
    return greeting + request + "".join(extras) + rng.choice(CLOSINGS)


def _amount(order: "Order", rng: random.Random) -> str:
    """Quantity and unit in words: `12 boxes`, `twelve boxes`, `a dozen boxes`, `one box`."""
    if order.quantity == 1:
        return rng.choice(("1", "one", "a single")) + " " + order.unit
    spoken = [word for word, number in NUMBER_WORDS.items() if number == order.quantity]
    number = rng.choice([*spoken, str(order.quantity)])
    return f"{number} {UNITS[order.unit]}"


def _date(due: str, pattern: str) -> str:
    """`due` (YYYY-MM-DD) put into `pattern`: `14 March`, `March 14`, `the 14th of March`."""
    day, month = int(due[8:]), MONTHS[int(due[5:7]) - 1]
    ending = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return pattern.format(day=day, nth=f"{day}{ending}", month=month)
