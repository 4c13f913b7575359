package main

import (
	"errors"
	"fmt"

	espalier "espalier/sdk"
)

func init() { espalier.Reward(score) }
func main() {}

func score(_ *espalier.Rollout, _ espalier.NoSettings) ([]espalier.Score, error) {
	browser, err := espalier.OpenBrowser("main")
	if err != nil {
		return nil, err
	}
	shop := espalier.Service("shop")
	var title, none string
	if err := browser.EvaluateIsolated("document.title", &title); err != nil {
		return nil, err
	}
	var thrown, refused *espalier.Failure
	if err := browser.Evaluate("missing", &none); !errors.As(err, &thrown) {
		return nil, fmt.Errorf("not a failure: %w", err)
	}
	if err := shop.Get("/none", &none); !errors.As(err, &refused) {
		return nil, fmt.Errorf("not a failure: %w", err)
	}
	var search struct{ Found float64 }
	if err := shop.Post("/find", map[string]string{"name": "lamp"}, &search); err != nil {
		return nil, err
	}
	var kept struct{ State struct{ Orders []string } }
	if err := shop.Get("/go", &kept); err != nil {
		return nil, err
	}
	reason := fmt.Sprintf("%s, %s, %s", title, thrown.Code, refused.Text)
	return []espalier.Score{espalier.RewardOf(search.Found*float64(len(kept.State.Orders)), reason)}, nil
}
