import re
import subprocess
import sys
from itertools import islice

import pytest

from batchgen.demo import words
from batchgen.demo.orders import (
    INSTRUCTION,
    Example,
    Order,
    Score,
    batch_line,
    examples,
    held_out,
    score,
    split_of,
)

ORDER = Order("Anna Berg", "Cape Town", "oak chairs", 12, "box", "2027-03-14", urgent=True)


@pytest.fixture(scope="module")
def training() -> list[Example]:
    return list(islice(examples(1, "training"), 20_000))


def test_the_same_seed_gives_the_same_orders() -> None:
    assert held_out(50, seed=3) == held_out(50, seed=3)
    assert held_out(50, seed=3) != held_out(50, seed=4)


def test_more_held_out_orders_begin_with_the_fewer() -> None:
    assert held_out(100)[:20] == held_out(20)


def test_held_out_customers_and_deliveries_never_occur_in_training(
    training: list[Example],
) -> None:
    customers = {example.order.customer for example in training}
    deliveries = {(example.order.city, example.order.item) for example in training}
    for example in held_out(500):
        assert example.order.customer not in customers
        assert (example.order.city, example.order.item) not in deliveries


def test_every_word_of_a_held_out_order_occurs_in_training(training: list[Example]) -> None:
    known = set()
    for example in training:
        known |= _words(example.message)
    for example in held_out(500):
        assert _words(example.message) <= known


def test_an_order_that_mixes_seen_and_held_out_combinations_is_used_nowhere() -> None:
    splits = {
        split_of(Order(f"{first} Berg", city, "oak chairs", 1, "box", "2027-01-01", urgent=False))
        for first in words.FIRST_NAMES
        for city in words.CITIES
    }
    assert splits == {"training", "held-out", None}


def test_the_answer_is_compact_json_in_the_order_of_the_fields() -> None:
    assert ORDER.to_json() == (
        '{"customer":"Anna Berg","city":"Cape Town","item":"oak chairs","quantity":12,'
        '"unit":"box","due":"2027-03-14","urgent":true}'
    )


def test_messages_say_what_the_order_holds(training: list[Example]) -> None:
    for example in training[:2_000]:
        order, text = example.order, example.message
        assert order.customer in text
        assert order.city in text
        assert order.item in text.lower()
        assert words.MONTHS[int(order.due[5:7]) - 1] in text
        assert re.search(rf"\b{int(order.due[8:])}(st|nd|rd|th)?\b", text)
        assert (order.unit if order.quantity == 1 else words.UNITS[order.unit]) in text
        assert "{" not in text
        assert "  " not in text


def test_made_up_names_come_on_request_and_never_to_the_held_out_orders() -> None:
    plain = {example.order.customer for example in islice(examples(1, "training"), 500)}
    mixed = [e.order for e in islice(examples(1, "training", made_up_share=0.5), 500)]
    known = set(words.FIRST_NAMES)
    assert all(customer.split()[0] in known for customer in plain)
    made_up = sum(order.customer.split()[0] not in known for order in mixed)
    assert 150 < made_up < 350
    assert any(order.city not in words.CITIES for order in mixed)


def test_the_orders_need_the_standard_library_only() -> None:
    code = (
        "import sys, batchgen.demo.orders;"
        "print(sorted({'torch', 'tokenizers', 'numpy', 'openvino'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_batch_line_is_a_greedy_chat_completion_with_the_instruction_first() -> None:
    example = Example("Two boxes, please.", ORDER)
    line = batch_line(example, "order-001")
    assert (line["custom_id"], line["method"]) == ("order-001", "POST")
    assert line["url"] == "/v1/chat/completions"
    assert line["body"]["model"] == "demo"
    assert line["body"]["temperature"] == 0
    assert line["body"]["messages"] == [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": "Two boxes, please."},
    ]


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (ORDER.to_json(), Score(total=1, exact=1, wrong=0, unparsed=0)),
        ("\n" + ORDER.to_json().replace(",", ", ") + " ", Score(1, 1, 0, 0)),
        (ORDER.to_json().replace("12", "21"), Score(1, 0, 1, 0)),
        (ORDER.to_json().replace("true", "1"), Score(1, 0, 1, 0)),
        (ORDER.to_json().replace("12", '"12"'), Score(1, 0, 1, 0)),
        (ORDER.to_json()[:-1], Score(1, 0, 0, 1)),
        ("[1]", Score(1, 0, 0, 1)),
        ("", Score(1, 0, 0, 1)),
    ],
)
def test_an_answer_is_exact_wrong_or_unparsed(answer: str, wanted: Score) -> None:
    assert score({"a": answer}, {"a": ORDER.to_dict()}) == wanted


def test_an_order_without_an_answer_counts_as_unparsed() -> None:
    assert score({}, {"a": ORDER.to_dict()}) == Score(1, 0, 0, 1)
    assert score({"stranger": ORDER.to_json()}, {}).exact_share == 0.0


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", text))
