"""The page in a browser: three sizes, light and dark, with a keyboard, for screen readers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builders import a_claim, a_request
from vgpu_api.conditions import ALLOCATED
from vgpu_api.v1alpha1 import Condition, VGPUClaimStatus
from vgpu_operator.engine import events
from vgpu_operator.ledger import ClaimKey
from web_fleet import NOW, ServedFleet, a_waiter
from web_visit import NARROW, POD, VIEWS, Visit, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AXE = Path(os.environ["VGPU_BROWSER"]) / "axe" / "axe.min.js"
LARGEST_PAGE_ROWS = 60
"""Enough rows in any table for one page and a few more."""
FOCUS_PX = 2
MOST_STOPS = 60

pytestmark = [pytest.mark.timeout(180), pytest.mark.real_time]


def violations(tab: Visit) -> list[str]:
    """Return axe's findings against WCAG 2.2 AA and its best practices, one line each."""
    tab.page.evaluate(AXE.read_text())
    found: dict[str, Any] = tab.page.evaluate("() => axe.run({resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"][:3]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_barrier_an_error_or_a_request_to_elsewhere(
    browser: Browser, fleet: ServedFleet, scheme: str
) -> None:
    with visit(browser, fleet, scheme=scheme) as tab:
        assert violations(tab) == []
        tab.log_in()
        for view in VIEWS:
            tab.go(view)
            if view == "what-if":
                tab.ask(POD)
            assert violations(tab) == [], view
            rows = tab.page.locator("table").first.locator("tr").count() if view != "node" else 0
            assert rows <= LARGEST_PAGE_ROWS, view
        assert tab.errors == []
        assert [url for url in tab.asked if not url.startswith(fleet.url)] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_only_tables_scroll_sideways(
    browser: Browser, fleet: ServedFleet, scheme: str
) -> None:
    with visit(browser, fleet, scheme=scheme, viewport=NARROW) as tab:
        tab.log_in()
        for view in VIEWS:
            tab.go(view)
            width = tab.page.evaluate("() => document.documentElement.scrollWidth")
            assert width == NARROW["width"], view
            assert violations(tab) == [], view


def test_everything_is_reached_by_tab_in_the_order_of_the_page_and_the_focus_is_seen(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.go("nodes")
        tab.page.get_by_role("link", name="Skip to content").focus()
        stops: list[str] = []
        while not tab.page.evaluate("() => document.activeElement === document.body"):
            stops.append(tab.focused())
            assert len(stops) < MOST_STOPS, stops
            outline = tab.page.evaluate(
                "() => parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
            )
            assert outline >= FOCUS_PX, stops
            tab.page.keyboard.press("Tab")
        names = ["Skip to content", "Fleet", "Nodes", "Claims", "Waiting", "Idle", "What if"]
        names += ["search-text", "leave"]
        assert stops[: len(names)] == names
        filters = ["filter-text", "filter-state", "filter-go"]
        assert stops[len(names) : len(names) + len(filters)] == filters
        orders = [stop for stop in stops if stop.startswith("sort-")]
        assert orders == [
            f"sort-{name}"
            for name in ("name", "devices", "memory", "cores", "free", "split", "claims")
        ]
        assert [stop for stop in stops if stop.startswith("gpu-")] == ["gpu-a-0000", "gpu-b-0001"]


def test_a_visit_takes_the_keyboard_alone(browser: Browser, small: ServedFleet) -> None:
    with visit(browser, small) as tab:
        assert tab.focused() == "token"
        tab.page.keyboard.type("admin")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("heading", level=1, name="Fleet").wait_for()
        tab.page.get_by_role("link", name="Skip to content").focus()
        tab.page.keyboard.press("Enter")
        assert tab.focused() == "main"
        tab.page.get_by_role("link", name="Claims", exact=True).first.focus()
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("heading", level=1, name="Claims").wait_for()
        assert tab.focused() == "main", "the new view is read from its start"
        tab.page.get_by_label("Name or pod").focus()
        tab.page.keyboard.type("eval")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("1–2 of 2").wait_for()
        assert tab.focused() == "filter-text"
        tab.page.keyboard.press("Escape")
        assert tab.page.get_by_label("Name or pod").input_value() == ""
        tab.page.keyboard.press("Enter")
        tab.page.get_by_text("1–12 of 12").wait_for()
        tab.page.get_by_role("button", name="Memory").focus()
        tab.page.keyboard.press("Enter")
        sorted_by = tab.page.locator("th[aria-sort=ascending]").filter(has_text="Memory")
        sorted_by.wait_for()
        assert tab.focused() == "sort-memory"
        tab.go("what-if")
        assert tab.focused() == "text"
        tab.page.keyboard.insert_text(POD)
        tab.page.keyboard.press("Tab")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("heading", name="Where they would go").wait_for()
        tab.page.locator("summary").first.focus()
        tab.page.keyboard.press("Enter")
        assert tab.page.locator("details[open]").count() == 1
        tab.page.get_by_role("button", name="Log out").focus()
        tab.page.keyboard.press("Enter")
        assert tab.focused() == "token"


def test_a_screen_reader_is_given_names_states_and_amounts(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.go("nodes")
        page = tab.page
        assert page.get_by_role("navigation", name="Views").get_by_role("link").count() == 6
        assert page.locator("a[aria-current=page]").all_text_contents() == ["Nodes"]
        assert page.get_by_role("table", name="Nodes").count() == 1
        assert page.get_by_role("rowheader").all_text_contents() == ["gpu-a-0000", "gpu-b-0001"]
        assert page.get_by_role("columnheader", name="Memory").get_attribute("aria-sort") == (
            "descending"
        )
        meters = [
            each.get_attribute("aria-label") or "" for each in page.get_by_role("meter").all()
        ]
        named = [label.partition(":")[0] for label in meters]
        assert named == [
            f"{amount} of {node}{kind}"
            for node in ("gpu-a-0000", "gpu-b-0001")
            for amount in ("Memory", "Compute")
            for kind in ("", " in use")
        ]
        assert page.get_by_role("status").inner_text().startswith("Live.")


def test_a_change_is_shown_and_leaves_focus_and_typed_text_alone(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.go("claims")
        tab.page.get_by_label("Name or pod").focus()
        tab.page.keyboard.type("half a na")
        before = len(tab.asked)
        small.observe(events.ClaimObserved(a_waiter(600)))
        tab.page.get_by_text("1–13 of 13").wait_for()
        assert tab.focused() == "filter-text"
        assert tab.page.get_by_label("Name or pod").input_value() == "half a na"
        assert len(tab.asked) == before, "the document came without being asked for"


def test_what_others_wrote_is_shown_as_text(browser: Browser, small: ServedFleet) -> None:
    bad = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    condition = Condition(
        type=ALLOCATED, status="False", reason="Odd", message=bad, last_transition_time=NOW
    )
    status = VGPUClaimStatus(state="Pending", conditions=[condition])
    odd = a_claim("odd", namespace="vision", uid="odd", requests=[a_request()], status=status)
    with visit(browser, small) as tab:
        small.observe(events.ClaimObserved(odd))
        tab.log_in()
        tab.page.evaluate("() => { location.hash = '#/claims/vision/odd'; }")
        tab.page.locator(".why", has_text=bad).wait_for()
        assert tab.page.locator("main img, main script").count() == 0
        assert tab.errors == []


def test_the_policy_holds(browser: Browser, small: ServedFleet) -> None:
    """Injected scripts do not run, and text never becomes elements."""
    with visit(browser, small) as tab:
        ran = tab.page.evaluate(
            """() => {
              const added = document.createElement("script");
              try { added.text = "window.ran = true"; document.head.append(added); } catch {}
              try { document.body.innerHTML = "<b>x</b>"; return "set"; } catch {}
              return window.ran;
            }"""
        )
        assert ran is None
        image = tab.page.evaluate(
            """() => new Promise((done) => {
              const made = new Image();
              made.onload = () => done("loaded"); made.onerror = () => done("refused");
              made.src = "https://example.com/x.png";
            })"""
        )
        assert image == "refused"
        assert any("Content Security Policy" in each for each in tab.errors)


def test_a_token_is_kept_in_the_tab_alone_until_it_logs_out(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        kept = tab.page.evaluate(
            "() => [document.cookie, localStorage.length, sessionStorage.length]"
        )
        assert kept == ["", 0, 1]
        assert not [url for url in tab.asked if "admin" in url]
        tab.page.reload()
        tab.page.get_by_role("heading", level=1, name="Fleet").wait_for()
        tab.page.get_by_role("button", name="Log out").click()
        tab.page.get_by_role("heading", name="Log in").wait_for()
        assert tab.page.evaluate("() => sessionStorage.length") == 0
        tab.page.reload()
        tab.page.get_by_role("heading", name="Log in").wait_for()


def test_a_code_that_nobody_redeems_leads_to_the_log_in(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.page.goto(f"{tab.url}#/login/abc-_1")
        tab.page.get_by_role("alert").filter(has_text="kubectl vgpu web").wait_for()
        tab.page.get_by_role("heading", name="Log in").wait_for()
        assert "abc" not in tab.page.url


def test_bars_fill_their_height_and_as_much_of_their_width_as_is_allocated(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.go("nodes")
        bars = tab.page.get_by_role("meter").all()
        assert bars
        for bar in bars:
            part = bar.locator(".segment").bounding_box()
            whole = bar.bounding_box()
            assert part is not None
            assert whole is not None
            assert part["height"] == whole["height"]
            held, given = (
                float(bar.get_attribute(f"aria-value{name}") or "") for name in ("now", "max")
            )
            assert part["width"] == pytest.approx(whole["width"] * held / given, abs=1)


def test_a_gpu_is_one_bar_with_a_segment_for_each_claim(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.go("node")
        rows = [row for row in tab.page.locator("tbody tr").all() if row.locator("li").count()]
        assert rows
        for row in rows:
            claims = [name.split("\n")[0] for name in row.locator("li a").all_inner_texts()]
            segments = row.get_by_role("img").locator(".segment").all()
            titles = [each.get_attribute("title") or "" for each in segments]
            assert [title.partition(":")[0] for title in titles] == claims


def test_a_reason_leads_to_the_claims_that_wait_for_it_with_their_sentence(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        reason = tab.page.get_by_role("region", name="Why claims wait").get_by_role("link").first
        word = reason.inner_text()
        reason.click()
        tab.page.get_by_role("heading", level=1, name="Waiting claims").wait_for()
        found = tab.page.locator(".reason").all_inner_texts()
        assert set(found) == {word}
        assert all(tab.page.locator(".sentence").all_inner_texts())


def test_what_is_typed_into_the_search_is_found_while_it_is_typed(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        field = tab.page.get_by_label("Search claims, pods, nodes and devices")
        field.focus()
        tab.page.keyboard.type("gpu-b")
        tab.page.get_by_role("heading", level=1, name="Search for gpu-b").wait_for()
        assert tab.focused() == "search-text"
        found = tab.page.get_by_role("region", name="Found nodes").get_by_role("rowheader")
        assert found.all_text_contents() == ["gpu-b-0001"]
        tab.page.keyboard.type("-none")
        tab.page.get_by_text("Nothing that you may see has gpu-b-none in its name.").wait_for()
        tab.go("fleet")
        assert field.input_value() == ""


def test_the_last_day_is_drawn_with_its_gap_and_told_to_screen_readers(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        pictures = tab.page.locator("figure svg")
        pictures.first.wait_for()
        told = [each.get_attribute("aria-label") or "" for each in pictures.all()]
        assert [text.partition(" in the last 24 hours: last ")[0] for text in told] == [
            "Memory used",
            "Compute used, devices",
        ]
        assert pictures.first.locator(".line").count() == 2, "a gap is no line"


def test_a_page_that_does_not_exist_says_so(browser: Browser, small: ServedFleet) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.page.evaluate("() => { location.hash = '#/nonsense'; }")
        tab.page.get_by_role("heading", level=1, name="No such page").wait_for()


def test_a_wrong_token_is_refused_in_words(browser: Browser, small: ServedFleet) -> None:
    with visit(browser, small) as tab:
        tab.page.get_by_label("Token").fill("forged")
        tab.page.keyboard.press("Enter")
        alert = tab.page.get_by_role("alert")
        alert.filter(has_text="the API server does not know this token").wait_for()
        assert tab.focused() == "token"
        assert violations(tab) == []


def test_a_tenant_is_shown_his_claims_and_counts_of_others(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in("tenant")
        tab.go("claims")
        spaces = {
            text.split("/")[0] for text in tab.page.get_by_role("rowheader").all_text_contents()
        }
        assert spaces == {"vision"}
        tab.page.get_by_text("claims are in namespaces that you may not read").wait_for()
        tab.page.evaluate("() => { location.hash = '#/claims/robotics/train-00005-gpu'; }")
        tab.page.get_by_role("alert").filter(has_text="cannot list vgpuclaims.vgpu.dev").wait_for()


def test_a_claim_that_is_deleted_while_it_is_shown_says_so(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.go("claim")
        small.observe(events.ClaimDeleted(ClaimKey("robotics", "train-00005-gpu"), "uid-5"))
        alert = tab.page.get_by_role("alert")
        alert.filter(has_text="no claim train-00005-gpu in namespace robotics").wait_for()


def test_while_the_server_is_away_the_page_says_so_and_comes_back(
    browser: Browser, small: ServedFleet
) -> None:
    with visit(browser, small) as tab:
        tab.log_in()
        tab.page.route("**/api/**", lambda route: route.abort())
        tab.page.evaluate("() => { location.hash = '#/nodes'; }")
        status = tab.page.get_by_role("status")
        status.filter(has_text="Not connected. Trying again.").wait_for()
        tab.page.unroute("**/api/**")
        tab.page.get_by_role("heading", level=1, name="Nodes").wait_for()
