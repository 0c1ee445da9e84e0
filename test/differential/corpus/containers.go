package corpus

import "fmt"

func (g *generator) image() string {
	image := one(g, "registry.example.com/shop/cart", "registry.example.com/tools/proxy", "ghcr.io/example/orders",
		"quay.io/prometheus/node-exporter", "registry.k8s.io/pause", "docker.io/library/busybox", "nginx", "bitnami/redis", "localhost:5000/dev/thing")
	switch g.IntN(5) {
	case 0:
		return image + "@sha256:" + g.text(hexDigits, 64)
	case 1:
		return image + ":" + one(g, "latest", "main", "dev")
	case 2:
		if g.chance(30) {
			return image
		}
	}
	return fmt.Sprintf("%s:%d.%d.%d", image, g.IntN(5), g.IntN(30), g.IntN(10))
}

// container returns a container with the defaults of the API.
func (g *generator) container(name string, position int) document {
	port := 8080 + position
	c := document{
		"name": name, "image": g.image(), "imagePullPolicy": one(g, "IfNotPresent", "Always"),
		"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
		"ports":     list{document{"name": fmt.Sprintf("http-%d", position), "containerPort": port, "protocol": "TCP"}},
		"resources": g.resources(),
		"volumeMounts": list{
			document{"name": "config", "mountPath": "/etc/" + name, "readOnly": true},
			document{"name": "tmp", "mountPath": "/tmp"},
		},
		"env": list{
			document{"name": "LOG_LEVEL", "value": one(g, "info", "debug", "warn")},
			document{"name": "POD_IP", "valueFrom": document{"fieldRef": document{"apiVersion": "v1", "fieldPath": "status.podIP"}}},
			document{"name": "PASSWORD", "valueFrom": document{"secretKeyRef": document{"name": name, "key": "password"}}},
		},
	}
	if g.chance(5) {
		c["ports"].(list)[0].(document)["hostPort"] = port
	}
	if g.chance(50) {
		c["args"] = list{"--config=/etc/" + name + "/config.yaml", fmt.Sprintf("--workers=%d", 1+g.IntN(16))}
	}
	for _, probe := range []string{"readinessProbe", "livenessProbe"} {
		if g.chance(70) {
			c[probe] = g.probe(port)
		}
	}
	if context := g.securityContext(); len(context) > 0 {
		c["securityContext"] = context
	}
	return c
}

func (g *generator) probe(port int) document {
	probe := document{"initialDelaySeconds": g.IntN(20), "periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3}
	switch g.IntN(3) {
	case 0:
		probe["tcpSocket"] = document{"port": port}
	case 1:
		probe["exec"] = document{"command": list{"/bin/healthy", "--quick"}}
	default:
		probe["httpGet"] = document{"path": one(g, "/healthz", "/ready", "/"), "port": port, "scheme": "HTTP"}
	}
	return probe
}

func (g *generator) resources() document {
	resources := document{}
	if g.chance(90) {
		resources["requests"] = document{"cpu": one(g, "10m", "100m", "250m"), "memory": one(g, "64Mi", "128Mi", "1Gi")}
	}
	limits := document{}
	if g.chance(60) {
		limits["cpu"] = one(g, "100m", "500m", "1", "2", "4", "1.5")
	}
	if g.chance(80) {
		limits["memory"] = one(g, "128Mi", "512Mi", "1Gi", "2Gi", "4Gi", "500M", "1.5Gi", "1e9")
	}
	if len(limits) > 0 {
		resources["limits"] = limits
	}
	return resources
}

func (g *generator) securityContext() document {
	context := document{}
	if g.chance(60) {
		context["allowPrivilegeEscalation"] = g.chance(15)
	}
	if g.chance(50) {
		context["readOnlyRootFilesystem"] = g.chance(80)
	}
	if g.chance(5) {
		context["privileged"] = true
	}
	if g.chance(20) {
		context["runAsUser"] = one(g, 0, 1000, 70000)
	}
	if g.chance(30) {
		context["runAsNonRoot"] = g.chance(80)
	}
	if g.chance(60) {
		capabilities := document{"drop": one(g, list{"ALL"}, list{"NET_RAW"}, list{"NET_RAW", "NET_ADMIN"})}
		if g.chance(20) {
			capabilities["add"] = one(g, list{"NET_BIND_SERVICE"}, list{"NET_ADMIN"}, list{"SYS_TIME", "CHOWN"})
		}
		context["capabilities"] = capabilities
	}
	return context
}
