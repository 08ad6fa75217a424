"""An installed Chromium, driven by Selenium. Nothing is downloaded: browser and driver are those of this machine, or those
that CHROMIUM and CHROMEDRIVER name."""

import os
import shutil
import time

BROWSERS = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
NOT_RUN = "no Chromium with chromedriver was found"
PATIENCE = 90  # seconds; a page takes one, on a busy machine more


def installed():
    """The paths of browser and driver, or None."""
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def start():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary, driver = installed()
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("headless=new", "disable-gpu", "disable-dev-shm-usage", "window-size=1200,900", "hide-scrollbars"):
        options.add_argument(f"--{word}")
    if os.geteuid() == 0:  # Chromium has no sandbox for root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    made.set_page_load_timeout(PATIENCE)
    made.set_script_timeout(PATIENCE)
    return made


def look(browser, *, width=1200, dark=False):
    """How the next page is looked at: how wide, on light or dark paper."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def visit(browser, path):
    """Open a page and wait until its figures are drawn."""
    browser.get_log("browser")  # what earlier pages said
    browser.get(path.as_uri())
    ends = time.monotonic() + PATIENCE
    while not (ready := browser.execute_script("return document.body.dataset.ready")) and time.monotonic() < ends:
        time.sleep(0.05)
    assert ready == "yes", browser.execute_script("return document.getElementById('trouble').textContent")
    # Bokeh draws in the frames that follow.
    browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));")


def complaints(browser):
    """Warnings and errors on the console since the page was opened."""
    return [line["message"] for line in browser.get_log("browser") if line["level"] in ("WARNING", "SEVERE")]
