"""The log of a review that Kopf answers."""

from __future__ import annotations

import logging

import kopf
import pytest

from vgpu_operator.admission import kopf_handlers

KOPFS = logging.getLogger("kopf.objects")


@pytest.fixture(autouse=True)
def registered(caplog: pytest.LogCaptureFixture) -> None:
    kopf_handlers.register(kopf.OperatorRegistry())


def test_kopfs_error_about_a_refusal_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Kopf logs a refusal while it handles the exception, in words of its own."""
    try:
        raise kopf.AdmissionError("a wrong value")
    except kopf.AdmissionError as refusal:
        KOPFS.error("Handler 'validate-configuration' ended for good: %s", refusal)
    assert caplog.records == []


@pytest.mark.parametrize("text", ["a quota failed permanently", "Handler 'x' failed permanently"])
def test_no_other_error_is_left_out_for_its_words(
    caplog: pytest.LogCaptureFixture, text: str
) -> None:
    try:
        raise kopf.PermanentError(text)
    except kopf.PermanentError as fault:
        KOPFS.error("%s", fault)
    assert [record.getMessage() for record in caplog.records] == [text]
