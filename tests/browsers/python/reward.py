from espalier_sdk import Browser, Invalid, Other, Rollout, Score, Service, reward


@reward
def score(rollout: Rollout) -> Score:
    browser = Browser.open()
    shop = Service("shop")
    title = browser.evaluate_isolated("document.title")
    try:
        browser.evaluate("missing")
    except Other as failure:
        code = failure.code
    try:
        shop.get("/none")
    except Invalid as failure:
        text = failure.text
    found = shop.post("/find", {"name": "lamp"})["found"]
    return Score(found * len(shop.get("/go")["state"]["orders"]), reason=f"{title}, {code}, {text}")
