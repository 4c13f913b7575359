"""An agent of the standard library alone. Its first argument says what it does; it exits with 3 where it fails."""

import json
import os
import sys
import urllib.error
import urllib.request


def ask(messages, key=None, **more):
    body = json.dumps({"model": "any", "messages": messages, **more}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        body,
        {"Content-Type": "application/json", "Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"])},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


def main():
    what = sys.argv[1]
    history = [user(what)]
    try:
        if what == "silent":
            return 3
        history.append(ask(history))
        if what == "crash":
            return 3
        while what == "greedy":
            history += [user("more")]
            history.append(ask(history))
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
        return 3
    return 0


sys.exit(main())
