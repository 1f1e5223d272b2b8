package state

// Encodings for tests that look at one of them, not at the smallest.
const (
	Vector         = encVector
	Runs           = encRuns
	Bitmap         = encBitmap
	RunsDeflated   = encRunsDeflated
	BitmapDeflated = encBitmapDeflated
)

// Build returns the whole of s in one encoding, nil if it is unfit or too long.
func Build(s Snapshot, enc byte, limit int) []byte {
	e := newEncoder(s, limit)
	defer e.release()
	return e.build(enc, s.High)
}
