package apiserver

import (
	"strconv"

	"k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	basecompatibility "k8s.io/component-base/compatibility"
)

// SetVersion makes /version tell the version of this program. Which Kubernetes
// version the libraries emulate stays as it is.
func SetVersion(config *genericapiserver.Config, programVersion string) {
	config.EffectiveVersion = ownVersion{config.EffectiveVersion, programVersion}
}

// ownVersion is the effective version of the libraries with our own in its Info.
// The library's own takes the version of component-base, which nobody sets.
type ownVersion struct {
	basecompatibility.EffectiveVersion
	version string
}

// Info implements compatibility.EffectiveVersion.
func (v ownVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	if info == nil {
		return nil
	}
	info.GitVersion = v.version
	// The version has the commit as well. These are placeholders, or of Kubernetes.
	info.Major, info.Minor, info.GitCommit, info.GitTreeState, info.BuildDate = "", "", "", "", ""
	if parsed, err := version.ParseSemantic(v.version); err == nil {
		info.Major, info.Minor = strconv.FormatUint(uint64(parsed.Major()), 10), strconv.FormatUint(uint64(parsed.Minor()), 10)
	}
	return info
}
