"""Web UI in Chromium; skipped unless Chromium and Playwright are installed."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence

import pytest

from tests.engine.hybrid import write_hybrid
from tests.server.running_server import RunningServer

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; `./pdmw run test-page` installs it"
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
if CHROMIUM is None:
    pytest.skip("Chromium was not found; set CHROMIUM to its path", allow_module_level=True)

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
HOSTILE = (
    "<img src=x onerror=alert(1)> <script>alert(1)</script> [a](javascript:alert(1)) "
    "<a href='https://a.example' onclick='alert(1)' style='color:red'>b</a> ![p](https://b.example/p)"
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        # As root, Chromium needs --no-sandbox, which is safe here: it loads only the web UI.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser) -> Iterator:
    """Yields a function that opens a server's web UI; page errors fail the test."""
    contexts, errors = [], []

    def open_page(
        server: RunningServer,
        size=WIDE,
        expected: Sequence[str] = (),
        path="/",
        is_ready=True,
        **options,
    ):
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)

        def record_error(message: str) -> None:
            if not any(text in message for text in expected):
                errors.append(message)

        page.on("pageerror", lambda error: record_error(str(error)))
        page.on(
            "console", lambda told: told.type in ("error", "warning") and record_error(told.text)
        )
        page.goto(server.url + path)
        if is_ready:
            page.wait_for_selector(".status.ready")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors, errors


def test_selected_model(open_page):
    server = RunningServer("--model", "demo", "--model", "demo-draft")
    page = open_page(server, expected=["503", "ERR_CONNECTION_REFUSED"], is_ready=False)
    select = page.get_by_label("Model", exact=True)
    playwright.expect(select.locator("option")).to_have_text(
        ["demo (not loaded)", "demo-draft (not loaded)"]
    )
    select.select_option("demo-draft")
    playwright.expect(page.locator(".status")).to_have_text("loads on first use")
    ask(page, "Hello")
    playwright.expect(page.locator(".status")).to_have_text("ready", timeout=60_000)
    playwright.expect(select.locator("option")).to_have_text(
        ["demo (not loaded)", "demo-draft (loaded)"], timeout=60_000
    )
    assert 'model_name="demo"} 0.0' in server.get("/metrics").text
    assert server.stop() == 0


def ask(page, text: str) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def make_endless(route) -> None:
    """Route handler: adds `ignore_eos`, so the request runs to its limit."""
    route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))


def test_conversation(server, open_page):
    page = open_page(server)
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # activates the skip link to the message box
    page.keyboard.type("What is a cat?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message footer")
    assert page.inner_text(".message.user") == "What is a cat?"
    assert "cat" in page.inner_text(".message .markdown")
    thoughts = page.locator(".thoughts")
    assert thoughts.count() == 0 or thoughts.get_attribute("open") is None
    ask(page, "And a dog?")
    page.wait_for_selector(".message >> nth=3 >> css=footer")
    assert page.locator(".message").count() == 4
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".message").count() == 0


def test_stop_aborts_the_request_and_frees_its_slot(server, open_page):
    page = open_page(server)
    page.route("**/chat/completions", make_endless)
    ask(page, "Count.")
    page.wait_for_selector("tr.decode")
    assert page.get_by_role("log").get_attribute("aria-busy") == "true"
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("text=stopped")
    page.wait_for_selector("text=finished: abort")
    page.wait_for_selector("text=0 requests running, 0 waiting")


def test_engine_view_of_a_running_request(server, open_page):
    page = open_page(server)
    ask(page, "What is a cat?")
    page.wait_for_selector(".requests tr.ended")
    page.wait_for_selector(".tree li q")  # contains a branch's detokenized text
    label = page.get_by_role("img", name="Pages:").get_attribute("aria-label")
    assert "cached" in label
    assert "free" in label
    page.locator("canvas").first.focus()
    page.keyboard.press("ArrowRight")
    assert "Page 0 is" in page.inner_text(".page-info")
    assert page.locator(".plots canvas").count() == 2
    page.wait_for_selector(".stats:has-text('hit rate')")


def test_state_slots_of_a_hybrid_model(open_page, tmp_path):
    server = RunningServer("--model", str(write_hybrid(tmp_path / "model")), "--block-size", "8")
    page = open_page(server)
    server.post("/v1/completions", {"prompt": "word " * 40, "max_tokens": 20})
    # Not `wait_for_function`, whose JavaScript the Content-Security-Policy blocks.
    states = re.compile(r"0 of \d+ used by requests.*[1-9]\d* checkpoints")
    playwright.expect(page.locator(".states")).to_have_text(states, timeout=60_000)
    page.close()
    assert server.stop() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_window(server, open_page, scheme):
    page = open_page(server, NARROW, color_scheme=scheme)
    ask(page, "What is a cat?")
    page.wait_for_selector(".message footer")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.is_visible(".engine")
    page.get_by_role("button", name="Engine").click()
    assert page.is_visible(".engine")
    assert not page.is_visible(".chat")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(18, 20, 25)") == (scheme == "dark")


def test_model_output_is_not_executed(server, open_page):
    page = open_page(server, expected=["Content Security Policy"])
    html = page.evaluate(
        "async (text) => (await import('/page/markdown.js')).toHtml(text)", HOSTILE
    )
    for forbidden in ("<img", "<script", "onerror", "onclick", "javascript:", "style="):
        assert forbidden not in html
    assert 'href="https://a.example"' in html
    assert 'rel="noopener noreferrer"' in html


def test_recording_is_replayed_without_a_server(tmp_path, open_page):
    file = tmp_path / "run.json"
    running = RunningServer("--record", str(file))
    page = open_page(running, expected=["503", "ERR_CONNECTION_REFUSED"])
    ask(page, "What is a cat?")
    page.wait_for_selector(".message footer")
    assert running.stop() == 0
    page.wait_for_selector(".status.unreachable")
    page.set_input_files("input[type=file]", file)
    page.wait_for_selector(".playback")
    page.select_option("#speed", "20")
    page.wait_for_selector(".requests tr.ended")
    page.wait_for_selector(".tree li")
    # One script finds and clicks the button, because playback may end between two calls.
    page.evaluate(
        "[...document.querySelectorAll('.playback button')]"
        ".find((button) => button.textContent === 'Pause')?.click()"
    )
    page.locator("input[type=range]").fill("0")
    page.wait_for_selector("text=No requests.")
    (tmp_path / "other.json").write_text("{}")
    page.set_input_files("input[type=file]", tmp_path / "other.json")
    page.wait_for_selector("text=This is not a tiny-llm recording")
    page.get_by_role("button", name="Back to live").click()
    assert page.locator(".playback").count() == 0


def test_api_key_is_requested_and_not_stored(open_page):
    running = RunningServer("--api-key", "secret")
    try:
        page = open_page(running, expected=["401", "503", "ERR_CONNECTION_REFUSED"], is_ready=False)
        page.wait_for_selector("dialog")
        page.fill("dialog input", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector(".status.ready")
        ask(page, "What is a cat?")
        page.wait_for_selector(".message footer")
        assert page.evaluate("localStorage.length + sessionStorage.length") == 0
        assert page.context.cookies() == []
    finally:
        assert running.stop() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_endpoints_are_listed_and_can_be_called(server, open_page, scheme):
    size = WIDE if scheme == "light" else NARROW
    page = open_page(server, size, ["400 (Bad Request)"], "/docs", False, color_scheme=scheme)
    chat = page.locator("details.operation", has_text="/v1/chat/completions")
    chat.locator("summary").first.click()
    playwright.expect(chat.locator("td", has_text="temperature").first).to_be_visible()
    chat.get_by_role("button", name="Send").click()
    playwright.expect(chat.get_by_role("status")).to_contain_text("Paris")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tokenize = page.locator("details.operation", has_text="POST /tokenize")
    tokenize.locator("summary").first.click()
    tokenize.get_by_label("Request body").fill("{")
    tokenize.get_by_role("button", name="Send").click()
    playwright.expect(tokenize.get_by_role("status")).to_contain_text("The body is not valid JSON.")
