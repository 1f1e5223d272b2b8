package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateFile is what a run leaves for the one that goes on with it.
type stateFile struct {
	Version int    `json:"version"`
	Law     Law    `json:"law"`
	Totals  Totals `json:"totals"`
}

const stateVersion = 1

// load returns what an earlier run has judged; nothing where there is no file.
func load(path string, law Law) (Totals, error) {
	if path == "" {
		return Totals{}, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Totals{}, nil
	}
	if err != nil {
		return Totals{}, fmt.Errorf("--state: %w", err)
	}
	var f stateFile
	if err := json.Unmarshal(b, &f); err != nil {
		return Totals{}, fmt.Errorf("--state %s is not the state of a soak: name another file: %w", path, err)
	}
	if f.Version != stateVersion {
		return Totals{}, fmt.Errorf("--state %s is not the state of a soak of this program (version %d, want %d): name another file", path, f.Version, stateVersion)
	}
	if f.Law != law {
		return Totals{}, fmt.Errorf("--state %s is of a run under another law (%+v): repeat its flags, or name another file", path, f.Law)
	}
	return f.Totals, nil
}

// save replaces the file as a whole: one that was cut off half-way would end the run that
// wants to go on with it.
func save(path string, law Law, t Totals) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(stateFile{stateVersion, law, t}, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	_, err = tmp.Write(append(b, '\n'))
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("--state: %w", err)
	}
	return nil
}
