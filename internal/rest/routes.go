package rest

import (
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Patterns returns the patterns, as http.ServeMux takes them, of the REST routes of a procedure such as
// "/naradplane.v1.TopicService/CreateTopic". A procedure that has none, or is not known, has no patterns.
func Patterns(procedure string) []string {
	m := method(procedure)
	if m == nil {
		return nil
	}
	rule, ok := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	if !ok || rule == nil {
		return nil
	}
	var out []string
	for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		if p := pattern(r); p != "" {
			out = append(out, p)
		}
	}
	return out
}

func pattern(r *annotations.HttpRule) string {
	switch p := r.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return "GET " + p.Get
	case *annotations.HttpRule_Post:
		return "POST " + p.Post
	case *annotations.HttpRule_Put:
		return "PUT " + p.Put
	case *annotations.HttpRule_Patch:
		return "PATCH " + p.Patch
	case *annotations.HttpRule_Delete:
		return "DELETE " + p.Delete
	}
	return ""
}

// method finds a procedure's descriptor; nil when it is not known.
func method(procedure string) protoreflect.MethodDescriptor {
	name := []byte(procedure)
	for i, b := range name {
		if b == '/' {
			name[i] = '.'
		}
	}
	if len(name) == 0 {
		return nil
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name[1:]))
	if err != nil {
		return nil
	}
	m, _ := d.(protoreflect.MethodDescriptor)
	return m
}
