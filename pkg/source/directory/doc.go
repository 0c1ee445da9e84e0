// Package directory is the source of objects and policies in a folder of manifests:
// a GitOps repository, the dump of a cluster, or a few files under development.
//
// # What is read
//
// All files below the folder that end in .yaml, .yml or .json, with any number of
// documents each. Lists (kind List, or a kind that ends in List with items) stand
// for their items, even if they have a name. Names that begin with a dot are left
// out, like .git. Symbolic links are followed; what is reached twice is read once. A
// kustomization is skipped, because kustomize reads it and no cluster does. Other
// documents that are not objects are reported as problems. A source may also be a
// single file.
//
// # What becomes of it
//
// Objects are handed over the way a cluster would have them, as far as a manifest
// can tell:
//
//   - Kinds are those of the objects, plus ConstraintTemplate. If a kind occurs in
//     several versions, it is known under the one that Kubernetes' version priority
//     puts first, and all its objects are streamed under it, each as it is written.
//   - Whether a kind is namespaced is taken from its CustomResourceDefinition in the
//     folder, else from a table of the built-in kinds; a kind that neither knows is
//     namespaced if one of its objects has a namespace. A namespaced object without
//     a namespace is in the namespace default, as with kubectl.
//   - A Namespace that objects are in but no manifest describes is made up, with its
//     name and the label kubernetes.io/metadata.name. That label is added to all
//     Namespaces, as a cluster does.
//   - metadata.uid is the manifest's, or else derived from group, kind, namespace
//     and name; metadata.resourceVersion is a hash of the content, so an unchanged
//     manifest has the same one after a restart; metadata.generation is 1 unless the
//     manifest has one.
//   - Of several manifests of the same object the first in the order of paths is
//     used; the others are problems.
//
// # Invariants
//
//   - What cannot be read is a problem that names the file, the document and what to
//     do, and costs nothing else.
//   - There are at most 100 problems, the last of which says how many more there are,
//     with messages of at most 1 KiB.
//   - Nothing is deleted because it cannot be read: objects of a file that was fine
//     before stay as they were last seen, and so does everything if the folder
//     itself is gone, which the streams report as failed.
//   - Names, namespaces and kinds are at most as long as a cluster would take, and
//     every character in them is visible.
//   - Only files that changed are read again, judged by identity, size, modification
//     time and, where there is one, the time of the last change of any kind.
//
// The package imports k8s.io/apimachinery, fsnotify and YAML.
package directory
