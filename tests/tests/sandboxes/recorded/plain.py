"""An agent of the standard library alone. Its first argument says what it does; it exits with 3 where it fails."""

import json
import os
import sys
import urllib.error
import urllib.request


def ask_all(messages, **more):
    body = json.dumps({"model": "any", "messages": messages, **more}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        body,
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return [choice["message"] for choice in json.load(answer)["choices"]]


def ask(messages):
    return ask_all(messages)[0]


def user(text):
    return {"role": "user", "content": text}


def main():
    what = sys.argv[1]
    history = [user(what)]
    try:
        if what == "several":
            history.append(ask_all(history, n=3)[1])
            ask([*history, user("on")])
            return 0
        if what == "silent":
            return 3
        history.append(ask(history))
        if what == "crash":
            return 3
        if what == "again":
            # Two answers to a second question.
            ask([*history, user("two")])
            ask([*history, user("other")])
        if what == "compact":
            # The start is told in short; the last answer stays as it is.
            history += [user("two")]
            last = ask(history)
            short = [user("In short: it went on."), last, user("three")]
            short.append(ask(short))
            ask([*short, user("four")])
        while what == "greedy":
            history += [user("more")]
            history.append(ask(history))
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
        return 3
    return 0


sys.exit(main())
