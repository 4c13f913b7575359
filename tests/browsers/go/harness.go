package main

import (
	"fmt"
	"strings"

	espalier "espalier/sdk"
)

func init() { espalier.Harness(run) }
func main() {}

func run(task *espalier.Task, _ espalier.NoSettings) (*espalier.Report, error) {
	browser, err := espalier.OpenBrowser("main")
	if err != nil {
		return nil, err
	}
	page, err := browser.Snapshot(espalier.SnapshotOptions{})
	if err != nil {
		return nil, err
	}
	chat := espalier.NewConversation("policy").Offer(browser.Tools()).User(task.Instruction + "\n\n" + page.Text)
	outcomes := []string{}
	for {
		answer, err := chat.Complete()
		if err != nil {
			return nil, err
		}
		steps, err := browser.Act(answer.ToolCalls)
		if err != nil {
			return nil, err
		}
		for i, step := range steps {
			if step.Code != "" {
				outcomes = append(outcomes, step.Code)
			} else {
				outcomes = append(outcomes, step.Outcome)
			}
			if step.Outcome == "ended" {
				data, err := seen(browser)
				if err != nil {
					return nil, err
				}
				data["outcomes"] = strings.Join(outcomes, " ")
				return espalier.Submitted().WithAnswer(step.Message).WithData(data), nil
			}
			chat.ToolResult(answer.ToolCalls[i], step.Text, !step.Done())
		}
	}
}

// seen is what the browser shows at the end.
func seen(browser *espalier.Browser) (map[string]any, error) {
	picture, err := browser.Screenshot(espalier.ScreenshotOptions{Scale: 0.5})
	if err != nil {
		return nil, err
	}
	tabs, err := browser.Tabs()
	if err != nil {
		return nil, err
	}
	var title string
	if err := browser.EvaluateIsolated("document.title", &title); err != nil {
		return nil, err
	}
	var lamps int
	if err := browser.Evaluate("lamps", &lamps); err != nil {
		return nil, err
	}
	size := fmt.Sprintf("%d x %d", picture.Width, picture.Height)
	return map[string]any{"url": tabs[0].Url, "title": title, "lamps": lamps, "picture": size}, nil
}
