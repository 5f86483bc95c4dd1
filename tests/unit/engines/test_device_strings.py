"""Device strings are read without OpenVINO; malformed ones are refused with the reason."""

import pytest

from batchgen.domain.errors import InvalidRequest
from batchgen.engines.device_strings import DeviceString, parse_device


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("CPU", DeviceString(None, ("CPU",))),
        ("GPU.1", DeviceString(None, ("GPU.1",))),
        ("GPU.1.0", DeviceString(None, ("GPU.1.0",))),
        ("NPU", DeviceString(None, ("NPU",))),
        ("AUTO", DeviceString("AUTO", ())),
        ("AUTO:GPU,CPU", DeviceString("AUTO", ("GPU", "CPU"))),
        ("AUTO:-CPU", DeviceString("AUTO", (), ("CPU",))),
        ("HETERO:GPU.0,GPU.1", DeviceString("HETERO", ("GPU.0", "GPU.1"))),
        ("HETERO:CPU", DeviceString("HETERO", ("CPU",))),
        ("MULTI:GPU.0,CPU", DeviceString("MULTI", ("GPU.0", "CPU"))),
    ],
)
def test_a_device_string_is_read(text: str, meant: DeviceString) -> None:
    assert parse_device(text) == meant


def test_its_first_device_serves_it() -> None:
    assert parse_device("HETERO:GPU.0,CPU").first == "GPU.0"
    assert parse_device("AUTO").first is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cpu", "did you mean CPU"),
        ("GPU0", "did you mean GPU"),
        ("HETRO:GPU.0,CPU", "did you mean HETERO"),
        ("", "known: CPU, GPU"),
        ("cuda:0", "known: CPU, GPU"),
        ("HETERO", "needs its devices, as in HETERO:GPU.0,CPU"),
        ("HETERO:", "needs its devices"),
        ("AUTO:", "needs its devices"),
        ("HETERO:GPU.0,", "'' in it is no device"),
        ("HETERO:GPU.0, CPU", "' CPU' in it is no device"),
        ("HETERO:GPU.0;CPU", "in it is no device"),
        ("HETERO:AUTO:GPU", "in it is no device"),
        ("HETERO:GPU.0,GPU.0", "GPU.0 is in it twice"),
        ("HETERO:GPU.0,-CPU", "only AUTO can leave devices out"),
        ("CPU,GPU", "is no device"),
        ("GPU.x", "is no device"),
        ("BATCH:GPU", "batches by itself"),
        ("GPU\n", "is no device"),
    ],
)
def test_a_malformed_one_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        parse_device(text, param="draft.device")
    assert refused.value.param == "draft.device"
