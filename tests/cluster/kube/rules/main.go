// Command rules answers by Kubernetes' own code what our code has to agree with: one JSON document a
// line on stdin, one answer a line on stdout.
//
//	{"pod": …, "nodes": […], "pods": […]}   which nodes pass kube-scheduler's Filter plugins: by the
//	                                        name of each other node, why it does not
//	{"pod": …, "quotas": […]}               which quotas count the pod, by name
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	kubefeatures "k8s.io/kubernetes/pkg/features"
	podquota "k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/utils/clock"
)

type question struct {
	Pod    *v1.Pod             `json:"pod"`
	Nodes  []*v1.Node          `json:"nodes"`
	Pods   []*v1.Pod           `json:"pods"`
	Quotas []*v1.ResourceQuota `json:"quotas"`
}

type answer struct {
	Refused map[string]string `json:"refused,omitempty"`
	Counted []string          `json:"counted,omitempty"`
}

func main() {
	must(utilfeature.DefaultMutableFeatureGate.Set(string(kubefeatures.TaintTolerationComparisonOperators) + "=true"))
	metrics.Register()
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard) // a toleration that is no number is logged as an error
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		must(json.Unmarshal(lines.Bytes(), &asked))
		must(answers.Encode(answer{Refused: refused(asked), Counted: counted(asked)}))
	}
	must(lines.Err())
}

func refused(asked question) map[string]string {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	known := cache.NewSnapshot(asked.Pods, asked.Nodes)
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	filters, err := runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile(),
		runtime.WithSnapshotSharedLister(known), runtime.WithInformerFactory(factory))
	must(err)
	found := map[string]string{}
	state := framework.NewCycleState()
	allowed, status, _ := filters.RunPreFilterPlugins(ctx, state, asked.Pod)
	infos, err := known.NodeInfos().List()
	must(err)
	for _, info := range infos {
		name := info.Node().Name
		if !status.IsSuccess() && !status.IsSkip() {
			found[name] = status.Message()
		} else if allowed != nil && !allowed.AllNodes() && !allowed.NodeNames.Has(name) {
			found[name] = "ruled out before"
		} else if why := filters.RunFilterPlugins(ctx, state, asked.Pod, info); !why.IsSuccess() {
			found[name] = fmt.Sprintf("%s: %s", why.Plugin(), why.Message())
		}
	}
	return found
}

func counted(asked question) []string {
	var names []string
	evaluator := podquota.NewPodEvaluator(nil, clock.RealClock{})
	for _, quota := range asked.Quotas {
		quota.Status.Hard = quota.Spec.Hard // as the controller writes it
		matches, err := evaluator.Matches(quota, asked.Pod)
		must(err)
		if matches {
			names = append(names, quota.Name)
		}
	}
	return names
}

// profile has the filters that judge a pod and a node without volumes.
func profile() *config.KubeSchedulerProfile {
	configured, err := latest.Default()
	must(err)
	found := configured.Profiles[0]
	before := set("NodeAffinity", "NodePorts", "NodeResourcesFit", "PodTopologySpread", "InterPodAffinity")
	filters := set("NodeUnschedulable", "NodeName", "TaintToleration")
	filters.Enabled = append(filters.Enabled, before.Enabled...)
	found.Plugins = &config.Plugins{
		QueueSort: set("PrioritySort"), PreFilter: before, Filter: filters, Bind: set("DefaultBinder"),
	}
	return &found
}

func set(names ...string) config.PluginSet {
	var found config.PluginSet
	for _, name := range names {
		found.Enabled = append(found.Enabled, config.Plugin{Name: name})
	}
	return found
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
