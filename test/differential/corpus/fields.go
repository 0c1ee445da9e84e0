package corpus

import "fmt"

// managed adds the managedFields entry of a manager that owns everything but
// the status, and returns the document.
func managed(d document, manager, at string) document {
	owned := document{}
	for key, value := range d {
		switch key {
		case "apiVersion", "kind", "status":
		case "metadata":
			metadata := document{}
			for _, field := range []string{"labels", "annotations", "generateName", "ownerReferences"} {
				if v, ok := value.(document)[field]; ok {
					metadata["f:"+field] = fields(v)
				}
			}
			owned["f:metadata"] = metadata
		default:
			owned["f:"+key] = fields(value)
		}
	}
	metadata := d["metadata"].(document)
	entries, _ := metadata["managedFields"].(list)
	metadata["managedFields"] = append(entries, document{
		"apiVersion": d["apiVersion"], "fieldsType": "FieldsV1", "manager": manager, "operation": "Update", "time": at,
		"fieldsV1": owned,
	})
	return d
}

// managedStatus adds the entry of the manager of the status.
func managedStatus(d document, manager, at string) document {
	metadata := d["metadata"].(document)
	entries, _ := metadata["managedFields"].(list)
	metadata["managedFields"] = append(entries, document{
		"apiVersion": d["apiVersion"], "fieldsType": "FieldsV1", "manager": manager, "operation": "Update", "subresource": "status", "time": at,
		"fieldsV1": document{"f:status": fields(d["status"])},
	})
	return d
}

// fields returns the set of a value's fields, as managedFields have it.
func fields(value any) document {
	out := document{}
	switch v := value.(type) {
	case document:
		for key, value := range v {
			out["f:"+key] = fields(value)
		}
	case list:
		for _, element := range v {
			d, ok := element.(document)
			if !ok {
				return document{} // a list that is owned as a whole
			}
			for _, key := range []string{"name", "type", "uid", "mountPath", "ip", "key"} {
				if id, ok := d[key]; ok {
					out[fmt.Sprintf("k:{%q:%q}", key, id)] = with(fields(d), document{".": document{}})
					break
				}
			}
		}
	}
	return out
}
