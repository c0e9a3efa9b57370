package config

import (
	"reflect"
	"time"

	"github.com/spf13/pflag"
)

// keyAnnotation marks a flag with the key that it sets, since two sections may have a key of one name.
const keyAnnotation = "naradplane_key"

// AddFlags adds one flag for each key of the named section, "controller" or "agent", and of the sections
// that all daemons share. Defaults are only shown; Load looks at flags that were set.
func AddFlags(fs *pflag.FlagSet, section string) {
	def := reflect.ValueOf(DefaultConfig())
	for _, k := range keys() {
		if s := k.section(); (s == "controller" || s == "agent") && s != section {
			continue
		}
		name := k.flag()
		switch value := def.FieldByIndex(k.index).Interface().(type) {
		case bool:
			fs.Bool(name, value, k.desc)
		case string:
			fs.String(name, value, k.desc)
		case int:
			fs.Int(name, value, k.desc)
		case int64:
			fs.Int64(name, value, k.desc)
		case time.Duration:
			fs.Duration(name, value, k.desc)
		case []string:
			fs.StringSlice(name, value, k.desc)
		default:
			panic("config: no flag for the type of " + k.name)
		}
		// The flag exists, so this can't fail.
		_ = fs.SetAnnotation(name, keyAnnotation, []string{k.name})
	}
}

// owns reports whether f sets k.
func owns(f *pflag.Flag, k key) bool {
	a := f.Annotations[keyAnnotation]
	return len(a) == 1 && a[0] == k.name
}

// flagValue returns a set flag's value for the decoder.
func flagValue(f *pflag.Flag) any {
	if s, ok := f.Value.(pflag.SliceValue); ok {
		return s.GetSlice()
	}
	return f.Value.String()
}
